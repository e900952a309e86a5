package bridge

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// linksMax is how many links are followed for one path.
const linksMax = 40

// resolve follows the links of a name in a root and gives the name of what it leads to, which may not be there yet. A name
// that is hidden, or leads to what is hidden, is refused: a link in a repository would otherwise give its .env or .git away.
func (r *Roots) resolve(in root, name string) (string, error) {
	var done []string
	rest := strings.Split(filepath.ToSlash(name), "/")
	for links := 0; len(rest) > 0; {
		element := rest[0]
		rest = rest[1:]
		switch {
		case element == "" || element == ".":
			continue
		case element == "..":
			if len(done) == 0 {
				return "", r.outside()
			}
			done = done[:len(done)-1]
			continue
		case strings.HasPrefix(element, "."):
			return "", errHidden()
		}
		at := filepath.Join(slices.Concat(done, []string{element})...)
		info, err := in.open.Lstat(at)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return "", r.explain(err)
		case info.Mode()&fs.ModeSymlink != 0:
			to, err := in.open.Readlink(at)
			if err != nil {
				return "", r.explain(err)
			}
			if links++; links > linksMax || filepath.IsAbs(to) {
				return "", r.outside()
			}
			rest = slices.Concat(strings.Split(filepath.ToSlash(to), "/"), rest)
			continue
		}
		done = append(done, element)
	}
	if len(done) == 0 {
		return ".", nil
	}
	return filepath.Join(done...), nil
}

func errHidden() error {
	return farm.Invalidf("it is hidden, and hidden files of this machine are left alone: ask the user to copy it, or to start the server with --root for its directory")
}

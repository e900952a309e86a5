package bridge

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// linksMax is the most links followed for one path.
const linksMax = 40

// resolve follows the links of a name in a root and returns the name that they lead to, which need not exist. It refuses hidden names
// and links to them: a link in a repository could otherwise expose its .env or .git.
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

func (r *remote) Sandbox(ctx context.Context, id string) (wire.Sandbox, error) {
	found, err := r.c.Sandbox(ctx, id)
	return found, r.explain(err)
}

func (r *remote) WriteTar(ctx context.Context, id, dir string, tar io.Reader, _ int64) error {
	return r.explain(r.c.Files(id).PutTar(ctx, dir, tar))
}

func (r *remote) OpenFile(ctx context.Context, id, path string) (io.ReadCloser, int64, error) {
	clean, err := cleanFile(path)
	if err != nil {
		return nil, 0, err
	}
	content, err := r.c.Files(id).Open(ctx, clean)
	if err != nil {
		return nil, 0, r.explain(err)
	}
	return content, content.Size, nil
}

func (r *remote) RemoveFile(ctx context.Context, id, path string) error {
	clean, err := cleanFile(path)
	if err != nil {
		return err
	}
	return r.explain(r.c.Files(id).Delete(ctx, clean))
}

func (r *remote) MoveFile(ctx context.Context, id, from, to string) error {
	from, err := cleanFile(from)
	if err != nil {
		return err
	}
	if to, err = cleanFile(to); err != nil {
		return err
	}
	return r.explain(r.c.Files(id).Move(ctx, from, to))
}

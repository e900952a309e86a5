package toolset

import (
	"path"
	"strings"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Results is the name of the workspace in older systems. Every image has a link of this name.
const Results = "/app/results"

// InResults checks a path that is relative to the workspace, or absolute with either of its names, and returns it relative; "." is
// the workspace itself. Any other path is invalid.
func InResults(name string) (string, error) {
	rest, ok := strings.CutPrefix(name, Results)
	if ok && (rest == "" || rest[0] == '/') {
		name = strings.TrimLeft(rest, "/")
	} else if strings.HasPrefix(name, "/") && name != farm.Workspace && !strings.HasPrefix(name, farm.Workspace+"/") {
		return "", farm.Invalidf("The path %q is not in %s, where all files are.", farm.Shorten(name), Results)
	}
	clean, err := farm.CleanPath(name)
	if err != nil {
		return "", err
	}
	return clean, nil
}

// Lexical resolves ".." in a path that stays inside its starting directory. It returns a path that leads out unchanged, for the caller
// to refuse.
func Lexical(p string) string {
	if !strings.Contains(p, "..") {
		return p
	}
	clean := path.Clean(p)
	if clean == ".." || strings.HasPrefix(clean, "../") {
		return p
	}
	if strings.HasSuffix(p, "/") {
		return clean + "/"
	}
	return clean
}

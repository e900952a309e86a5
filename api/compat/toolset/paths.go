package toolset

import (
	"path"
	"strings"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Results is the workspace under the name that it had in older systems. Every image has a link of this name.
const Results = "/app/results"

// InResults checks a path that is relative to the workspace, or absolute in it by either name, and gives it relative; "." is
// the workspace itself. What lies elsewhere is invalid.
func InResults(name string) (string, error) {
	rest, ok := strings.CutPrefix(name, Results)
	if ok && (rest == "" || rest[0] == '/') {
		name = strings.TrimLeft(rest, "/")
	} else if strings.HasPrefix(name, "/") && name != farm.Workspace && !strings.HasPrefix(name, farm.Workspace+"/") {
		return "", farm.Invalidf("The path %q is not in %s: files lie there.", farm.Shorten(name), Results)
	}
	clean, err := farm.CleanPath(name)
	if err != nil {
		return "", err //nolint:wrapcheck // a sentence of the domain
	}
	return clean, nil
}

// Lexical is a path without its "..", where it stays inside whatever it begins in; one that leads out is given as it is,
// for others to refuse.
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

package toolset

import (
	"strings"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Results is the workspace under the name that it had in older systems. Every image has a link of this name.
const Results = "/app/results"

// InResults checks a path that is relative to the workspace, or absolute in it by either name, and gives it relative; "." is
// the workspace itself. What lies elsewhere is invalid.
func InResults(path string) (string, error) {
	rest, ok := strings.CutPrefix(path, Results)
	if ok && (rest == "" || rest[0] == '/') {
		path = strings.TrimLeft(rest, "/")
	} else if strings.HasPrefix(path, "/") && path != farm.Workspace && !strings.HasPrefix(path, farm.Workspace+"/") {
		return "", farm.Invalidf("The path %q is not in %s: files lie there.", Short(path), Results)
	}
	clean, err := farm.CleanPath(path)
	if err != nil {
		return "", err //nolint:wrapcheck // a sentence of the domain
	}
	return clean, nil
}

// Short keeps a caller's text from filling an answer.
func Short(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

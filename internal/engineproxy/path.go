package engineproxy

import (
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// address is a parsed request target.
type address struct {
	version  string // such as "/v1.41"; empty: none
	segments []string
	query    url.Values
}

// path is the path without its version.
func (a address) path() string { return "/" + strings.Join(a.segments, "/") }

var (
	// pathForm has no escapes, no empty segments, and nothing that means something to a URL or a shell.
	pathForm = regexp.MustCompile(`^(/[A-Za-z0-9_.:@-]+)+$`)
	// versionForm are versions 1.40 to 1.99. In older ones, calls have other bodies: until 1.24 the start of a container had a HostConfig.
	versionForm = regexp.MustCompile(`^v1\.[4-9][0-9]$`)
)

// parsePath reads a request target as it was sent.
func parsePath(target string) (a address, err error) {
	path, query, _ := strings.Cut(target, "?")
	if !pathForm.MatchString(path) {
		return a, refuse("its path has characters or empty parts that no call of a farm has")
	}
	a.segments = strings.Split(path[1:], "/")
	if slices.Contains(a.segments, ".") || slices.Contains(a.segments, "..") {
		return a, refuse("its path has . or ..")
	}
	if versionForm.MatchString(a.segments[0]) {
		a.version, a.segments = "/"+a.segments[0], a.segments[1:]
	}
	if a.query, err = url.ParseQuery(query); err != nil {
		return a, refuse("its query cannot be read")
	}
	return a, nil
}

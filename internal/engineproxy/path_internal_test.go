package engineproxy

import (
	"net/url"
	"strings"
	"testing"
)

// What is parsed is the path that was sent, without a part that leads elsewhere, and the engine reads it the same way.
func FuzzParsePath(f *testing.F) {
	for _, target := range []string{
		"/v1.41/containers/json?filters={}", "/_ping", "/v1.41/images/python:1/json", "/v1.24/info", "/v1.41/../info", "//info", "/v1.41/%2e%2e/x", "/v1.41/x?a=%zz", "/v1.41", "http://x/info", "",
	} {
		f.Add(target)
	}
	f.Fuzz(func(t *testing.T, target string) {
		a, err := parsePath(target)
		if err != nil {
			return
		}
		path, _, _ := strings.Cut(target, "?")
		if len(a.segments) > 0 && a.version+a.path() != path {
			t.Fatalf("%q became %q and %q", target, a.version, a.path())
		}
		for _, segment := range a.segments {
			if segment == "" || strings.Trim(segment, ".") == "" && len(segment) < 3 || url.PathEscape(segment) != segment {
				t.Fatalf("%q has the segment %q", target, segment)
			}
		}
	})
}

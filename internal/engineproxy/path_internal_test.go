package engineproxy

import (
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/testbed"
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

// Sandboxes and volumes of a node may be thousands: of a list one element is held at a time.
func TestListsAreReadElementByElement(t *testing.T) {
	t.Parallel()
	r, w := io.Pipe()
	read := make(chan string)
	go func() {
		_, _ = io.WriteString(w, `{"Volumes":[{"Name":"a"},`)
		<-read // before the rest is there
		_, _ = io.WriteString(w, `{"Name":"b"}],"Warnings":["c"]}`)
		_ = w.Close()
	}()
	var all []string
	testbed.Must(t, each(json.NewDecoder(r), func(raw json.RawMessage) error {
		if all = append(all, string(raw)); len(all) == 1 {
			close(read)
		}
		return nil
	}))
	testbed.Check(t, slices.Equal(all, []string{`{"Name":"a"}`, `{"Name":"b"}`}), "the elements are %q", all)

	failed := errors.New("failed")
	for text, want := range map[string]bool{
		`[]`: true, `{"Volumes":null}`: true, `[{}]`: true,
		`[`: false, `[{}`: false, `[{},`: false, `[{"a"`: false, `<html>`: false, `["no object"]`: false,
	} {
		err := each(json.NewDecoder(strings.NewReader(text)), func(raw json.RawMessage) error {
			if raw[0] != '{' {
				return failed
			}
			return nil
		})
		testbed.Check(t, (err == nil) == want, "%s: %v", text, err)
	}
}

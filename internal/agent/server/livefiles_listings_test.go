package server_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/farm"
)

func TestListingAnywhereInPages(t *testing.T) {
	t.Parallel()
	l, dir := agenttest.StartWithFiles(t).Live(), t.TempDir()
	want := []string{}
	for _, name := range []string{"a", "a/b", "a/b/c", "a-b", "a-b/x", "z"} { // a-b is after a in a walk, and before a/b as a text
		agenttest.Must(t, os.Mkdir(filepath.Join(dir, name), 0o700))
		want = append(want, name)
	}
	for limit := 1; limit <= len(want)+1; limit++ {
		var got []string
		for after := ""; ; {
			page, err := l.FSList(t.Context(), dir, farm.MaxFSDepth, limit, after)
			agenttest.Must(t, err)
			for _, e := range page.Entries {
				got, after = append(got, strings.TrimPrefix(e.Path, dir+"/")), e.Path
			}
			if !page.More {
				break
			}
		}
		if strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("pages of %d: %v", limit, got)
		}
	}
}

// A page of files with much metadata is shorter, so that it is within what the farm takes.
func TestListingOfMuchMetadata(t *testing.T) {
	t.Parallel()
	const files = 200
	dir, err := os.MkdirTemp("/dev/shm", "metadata")
	agenttest.Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	l, full := agenttest.StartWithFiles(t).Live(), map[string]string{}
	for n := range farm.MaxMetadata {
		full[strconv.Itoa(n)] = "v"
	}
	for n := range files {
		_, err := l.FSWrite(t.Context(), filepath.Join(dir, fmt.Sprintf("%03d", n)), farm.FSWrite{How: farm.FSOverwrite, Mode: -1, Metadata: full}, strings.NewReader("x"))
		agenttest.Must(t, err)
	}
	found, after := 0, ""
	for more := true; more; {
		page, err := l.FSList(t.Context(), dir, 1, files, after)
		agenttest.Must(t, err)
		for _, e := range page.Entries {
			if len(e.Metadata) != farm.MaxMetadata {
				t.Fatalf("%s has %d pairs", e.Path, len(e.Metadata))
			}
		}
		found += len(page.Entries)
		after, more = page.Entries[len(page.Entries)-1].Path, page.More
	}
	if found != files {
		t.Errorf("%d files are listed, want %d", found, files)
	}
}

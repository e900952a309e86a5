package files_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/agent/files"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// pathsOf lists a directory page by page. tooLong counts the entries left out.
func pathsOf(t *testing.T, w *files.Workspace, dir string, q agent.ListQuery) (paths []string, tooLong int) {
	t.Helper()
	for {
		list, err := w.List(dir, q)
		agenttest.Must(t, err)
		if q.Limit > 0 && len(list.Entries) > q.Limit {
			t.Fatalf("%d entries on a page of %d", len(list.Entries), q.Limit)
		}
		for _, e := range list.Entries {
			paths = append(paths, e.Path)
		}
		tooLong += list.TooLong
		if !list.More {
			return paths, tooLong
		}
		q.After = paths[len(paths)-1]
	}
}

func workspace(t *testing.T) (*files.Workspace, string) {
	t.Helper()
	dir := t.TempDir()
	w, err := files.Open(dir)
	agenttest.Must(t, err)
	t.Cleanup(func() { _ = w.Close() })
	return w, dir
}

// Pages of any size add up to the same list, in the order of a walk.
func TestListPagesAreTheWholeList(t *testing.T) {
	t.Parallel()
	w, dir := workspace(t)
	for _, name := range []string{"a/b/c", "a/b.txt", "a/b-", "a-", "a.txt", "b/1", "b/2/x/y/z", "b/20", "c", "é/ü"} {
		path := filepath.Join(dir, name)
		agenttest.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		agenttest.Must(t, os.WriteFile(path, nil, 0o600))
	}
	for _, top := range []string{".", "b"} {
		var want []string
		agenttest.Must(t, filepath.WalkDir(filepath.Join(dir, top), func(path string, _ fs.DirEntry, err error) error {
			if path != filepath.Join(dir, top) {
				want = append(want, strings.TrimPrefix(path, dir+"/"))
			}
			return err
		}))
		for limit := range len(want) + 2 {
			got, _ := pathsOf(t, w, top, agent.ListQuery{Recursive: true, Limit: limit})
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s with pages of %d (-want +got):\n%s", top, limit, diff)
			}
		}
	}
	flat := []string{"a", "a-", "a.txt", "b", "c", "é"}
	for limit := range len(flat) + 2 {
		got, _ := pathsOf(t, w, "", agent.ListQuery{Limit: limit})
		if diff := cmp.Diff(flat, got); diff != "" {
			t.Errorf("not recursive with pages of %d (-want +got):\n%s", limit, diff)
		}
	}
	// The last entry of a page may be deleted before the next page is requested.
	list, err := w.List("", agent.ListQuery{Recursive: true, After: "b/2/x/gone"})
	if err != nil || len(list.Entries) == 0 || list.Entries[0].Path != "b/2/x/y" {
		t.Errorf("after a deleted entry: %+v, %v", list, err)
	}
}

func TestListOfMoreThanOnePage(t *testing.T) {
	t.Parallel()
	w, dir := workspace(t)
	const n = 1234
	for i := range n {
		agenttest.Must(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600))
	}
	if paths, _ := pathsOf(t, w, "", agent.ListQuery{Limit: 100}); len(paths) != n {
		t.Errorf("%d entries, want %d", len(paths), n)
	}
}

// What is left out is counted once, whatever the size of the pages.
func TestListPagesCountOnceWhatTheyLeaveOut(t *testing.T) {
	t.Parallel()
	w, dir := workspace(t)
	for _, name := range []string{"a", "b\xff", "c", "d\xfe", "e", "f\xff"} {
		agenttest.Must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	for limit := range 5 {
		if paths, leftOut := pathsOf(t, w, "", agent.ListQuery{Limit: limit}); len(paths) != 3 || leftOut != 3 {
			t.Errorf("pages of %d: %q, %d left out", limit, paths, leftOut)
		}
	}
}

// A tree of any depth is listed, as far as its paths are not too long.
func TestListOfADeepTree(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, levels, listed, tooLong int }{
		{1, 300, 900, 0}, {1, 2100, 3 * farm.MaxPathBytes / 2, 3}, {200, 300, 3 * (farm.MaxPathBytes / 201), 3},
	} {
		w, dir := workspace(t)
		root, err := os.OpenRoot(dir)
		agenttest.Must(t, err)
		name := strings.Repeat("d", c.name)
		for range c.levels { // the kernel does not accept a path of this length
			agenttest.Must(t, root.Mkdir(name, 0o755))
			agenttest.Must(t, root.Mkdir(strings.Repeat("a", c.name), 0o755))
			agenttest.Must(t, root.Mkdir(strings.Repeat("z", c.name), 0o755))
			next, err := root.OpenRoot(name)
			agenttest.Must(t, err)
			_ = root.Close()
			root = next
		}
		_ = root.Close()
		if paths, tooLong := pathsOf(t, w, "", agent.ListQuery{Recursive: true}); len(paths) != c.listed || tooLong != c.tooLong {
			t.Errorf("%d levels of %d bytes: %d entries, %d too long; want %d and %d", c.levels, c.name, len(paths), tooLong, c.listed, c.tooLong)
		}
	}
}

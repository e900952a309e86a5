package files_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/files"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// pathsOf lists a directory page by page. tooLong counts the entries left out.
func pathsOf(t *testing.T, w *files.Workspace, dir string, q agent.ListQuery) (paths []string, tooLong int) {
	t.Helper()
	for {
		list, err := w.List(dir, q)
		testbed.Must(t, err)
		testbed.Require(t, q.Limit <= 0 || len(list.Entries) <= q.Limit, "%d entries on a page of %d", len(list.Entries), q.Limit)
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
	testbed.Must(t, err)
	t.Cleanup(func() { _ = w.Close() })
	return w, dir
}

// Pages of any size add up to the same list, in the order of a walk.
func TestListPagesAreTheWholeList(t *testing.T) {
	t.Parallel()
	w, dir := workspace(t)
	for _, name := range []string{"a/b/c", "a/b.txt", "a/b-", "a-", "a.txt", "b/1", "b/2/x/y/z", "b/20", "c", "é/ü"} {
		path := filepath.Join(dir, name)
		testbed.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		testbed.Must(t, os.WriteFile(path, nil, 0o600))
	}
	for _, top := range []string{".", "b"} {
		var want []string
		testbed.Must(t, filepath.WalkDir(filepath.Join(dir, top), func(path string, _ fs.DirEntry, err error) error {
			if path != filepath.Join(dir, top) {
				want = append(want, strings.TrimPrefix(path, dir+"/"))
			}
			return err
		}))
		for limit := range len(want) + 2 {
			got, _ := pathsOf(t, w, top, agent.ListQuery{Recursive: true, Limit: limit})
			testbed.Diff(t, fmt.Sprintf("%s with pages of %d", top, limit), want, got)
		}
	}
	flat := []string{"a", "a-", "a.txt", "b", "c", "é"}
	for limit := range len(flat) + 2 {
		got, _ := pathsOf(t, w, "", agent.ListQuery{Limit: limit})
		testbed.Diff(t, fmt.Sprintf("not recursive with pages of %d", limit), flat, got)
	}
	// The last entry of a page may be deleted before the next page is requested.
	list, err := w.List("", agent.ListQuery{Recursive: true, After: "b/2/x/gone"})
	testbed.Check(t, err == nil && len(list.Entries) != 0 && list.Entries[0].Path == "b/2/x/y", "after a deleted entry: %+v, %v", list, err)
}

func TestListOfMoreThanOnePage(t *testing.T) {
	t.Parallel()
	w, dir := workspace(t)
	const n = 1234
	for i := range n {
		testbed.Must(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600))
	}
	paths, _ := pathsOf(t, w, "", agent.ListQuery{Limit: 100})
	testbed.Check(t, len(paths) == n, "%d entries, want %d", len(paths), n)
}

// The paths of a page are bounded as JSON has them: names of control characters take six times their bytes.
func TestListPagesAreBoundedInBytes(t *testing.T) {
	t.Parallel()
	for beyond, more := range map[int]bool{-1: false, 0: false, 1: true} {
		w, dir := workspace(t)
		left := agent.PageBytes + beyond
		folder := ""
		for range 15 {
			folder = filepath.Join(folder, strings.Repeat("\x01", 250))
			left -= farm.Quoted(folder)
		}
		testbed.Must(t, os.MkdirAll(filepath.Join(dir, folder), 0o755))
		count := 0
		add := func(path string) {
			testbed.Must(t, os.WriteFile(filepath.Join(dir, path), nil, 0o600))
			left -= farm.Quoted(path)
			count++
		}
		for left > 30_000 {
			add(filepath.Join(folder, fmt.Sprintf("%03d", count)))
		}
		for left > 400 {
			add(fmt.Sprintf("x%0199d", count))
		}
		add("y" + strings.Repeat("y", left-200))
		add("z" + strings.Repeat("z", left-1))
		list, err := w.List("", agent.ListQuery{Recursive: true})
		entries := count + 15
		if more {
			entries--
		}
		testbed.Check(t, err == nil && list.More == more && len(list.Entries) == entries, "%d bytes beyond a page: %d of %d entries, more %v, %v", beyond, len(list.Entries), count+15, list.More, err)
	}
}

// What is left out is counted once, whatever the size of the pages.
func TestListPagesCountOnceWhatTheyLeaveOut(t *testing.T) {
	t.Parallel()
	w, dir := workspace(t)
	for _, name := range []string{"a", "b\xff", "c", "d\xfe", "e", "f\xff"} {
		testbed.Must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	for limit := range 5 {
		paths, leftOut := pathsOf(t, w, "", agent.ListQuery{Limit: limit})
		testbed.Check(t, len(paths) == 3 && leftOut == 3, "pages of %d: %q, %d left out", limit, paths, leftOut)
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
		testbed.Must(t, err)
		name := strings.Repeat("d", c.name)
		for range c.levels { // the kernel does not accept a path of this length
			testbed.Must(t, root.Mkdir(name, 0o755))
			testbed.Must(t, root.Mkdir(strings.Repeat("a", c.name), 0o755))
			testbed.Must(t, root.Mkdir(strings.Repeat("z", c.name), 0o755))
			next, err := root.OpenRoot(name)
			testbed.Must(t, err)
			_ = root.Close()
			root = next
		}
		_ = root.Close()
		if paths, tooLong := pathsOf(t, w, "", agent.ListQuery{Recursive: true}); len(paths) != c.listed || tooLong != c.tooLong {
			t.Errorf("%d levels of %d bytes: %d entries, %d too long; want %d and %d", c.levels, c.name, len(paths), tooLong, c.listed, c.tooLong)
		}
	}
}

// A file deep in a tree has a path that the worker refuses, and took that for an agent that breaks the protocol: the sandbox was lost.
func TestAChangedFileWithATooLongPathIsSkipped(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w, err := files.Open(dir)
	testbed.Must(t, err)
	defer func() { _ = w.Close() }()
	before := w.Snapshot()
	fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	testbed.Must(t, err)
	name := strings.Repeat("d", 99)
	for range farm.MaxPathBytes / 100 { // the deepest directory has a path of MaxPathBytes-1 bytes
		testbed.Must(t, unix.Mkdirat(fd, name, 0o700))
		below, err := unix.Openat(fd, name, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		_ = unix.Close(fd)
		fd = below
		testbed.Must(t, err)
	}
	for _, file := range []string{"deep", "shallow"} {
		at := fd
		if file == "shallow" {
			at = unix.AT_FDCWD
			file = filepath.Join(dir, file)
		}
		f, err := unix.Openat(at, file, unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
		testbed.Must(t, err)
		_ = unix.Close(f)
	}
	_ = unix.Close(fd)
	changed, skipped, _ := before.Changes(0, 0)
	testbed.Check(t, len(changed) == 1 && changed[0].Path == "shallow" && skipped == 1, "%d changed files, %d skipped", len(changed), skipped)
}

// Paths of control characters count as the worker counts them: six bytes each.
func TestPathsOfChangedFilesAreBoundedAsJSON(t *testing.T) {
	t.Parallel()
	w, dir := workspace(t)
	before := w.Snapshot()
	name := strings.Repeat("\x01", 250)
	const quoted = 5 + 6*250 // of a path
	fit := agent.MaxPathsBytes / quoted
	for i := range fit + 1 {
		testbed.Must(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%05d", i)+name), nil, 0o600))
		if i == fit-1 {
			changed, skipped, _ := before.Changes(0, 0)
			testbed.Check(t, len(changed) == fit && skipped == 0, "of %d files %d are reported, %d skipped", fit, len(changed), skipped)
		}
	}
	changed, skipped, _ := before.Changes(0, 0)
	testbed.Check(t, len(changed) == fit && skipped == 1, "of %d files %d are reported, %d skipped", fit+1, len(changed), skipped)
}

// packed makes a tar of headers; regular files contain their own name.
func packed(headers ...tar.Header) []byte {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range headers {
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(h.Name))
		}
		if w.WriteHeader(&h) != nil {
			continue
		}
		if h.Typeflag == tar.TypeReg {
			_, _ = w.Write([]byte(h.Name))
		}
	}
	_ = w.Close()
	return out.Bytes()
}

// Archives come from callers. Nothing is written outside the workspace, whatever is in them, and one that is refused leaves nothing.
func FuzzPutTar(f *testing.F) {
	for _, seed := range [][]byte{
		nil, make([]byte, 1024), packed(tar.Header{Typeflag: tar.TypeReg, Name: "a/b.txt", Mode: 0o644}),
		packed(tar.Header{Typeflag: tar.TypeReg, Name: "../outside"}), packed(tar.Header{Typeflag: tar.TypeReg, Name: "/outside"}),
		packed(tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: ".."}, tar.Header{Typeflag: tar.TypeReg, Name: "l/outside"}),
		packed(tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "/etc/passwd"}), packed(tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: "../outside"}),
		packed(tar.Header{Typeflag: tar.TypeChar, Name: "d", Devmajor: 1, Devminor: 5}), packed(tar.Header{Typeflag: tar.TypeFifo, Name: "p"}),
		packed(tar.Header{Typeflag: tar.TypeDir, Name: "d/", Mode: 0o7777}, tar.Header{Typeflag: tar.TypeReg, Name: "d"}),
		packed(tar.Header{Typeflag: tar.TypeReg, Name: "x"})[:700], packed(tar.Header{Typeflag: tar.TypeReg, Name: ".sandfarm-staging/x"}),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) > 1<<16 {
			return
		}
		top := t.TempDir()
		work := filepath.Join(top, "deep", "work")
		testbed.Must(t, os.MkdirAll(work, 0o700))
		w, err := files.Open(work)
		testbed.Must(t, err)
		defer func() { _ = w.Close() }()
		err = w.PutTar("", bytes.NewReader(in))
		testbed.Check(t, err == nil || farm.CodeOf(err) != farm.CodeInternal, "the error has no code: %v", err)
		for _, dir := range []string{top, filepath.Join(top, "deep")} {
			entries, err := os.ReadDir(dir)
			testbed.Check(t, err == nil && len(entries) == 1, "%s has %d entries, %v", dir, len(entries), err)
		}
		if _, err := w.List("", agent.ListQuery{Recursive: true}); err != nil {
			t.Errorf("the workspace cannot be listed: %v", err)
		}
		entries, listErr := os.ReadDir(work)
		testbed.Check(t, err == nil || listErr == nil && len(entries) == 0, "a refused archive (%v) left %v, %v", err, entries, listErr)
		if err == nil {
			err := w.WriteTar("", &bytes.Buffer{})
			testbed.Check(t, err == nil, "the workspace cannot be packed: %v", err)
		}
	})
}

package files

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// someTree makes a directory with a file, a link, a pipe and what is being written.
func someTree(t *testing.T, top string, when time.Time) {
	t.Helper()
	testbed.Must(t, os.MkdirAll(filepath.Join(top, "d", stagingDir), 0o700))
	testbed.Must(t, os.WriteFile(filepath.Join(top, "d", stagingDir, "half"), nil, 0o600))
	testbed.Must(t, os.WriteFile(filepath.Join(top, "d", "f"), []byte("content"), 0o600))
	testbed.Must(t, os.Symlink("nowhere", filepath.Join(top, "d", "l")))
	testbed.Must(t, unix.Mkfifo(filepath.Join(top, "d", "p"), 0o600))
	for name, mode := range map[string]uint32{"d/f": 0o4750, "d": 0o510} {
		testbed.Must(t, unix.Chmod(filepath.Join(top, name), mode))
		testbed.Must(t, os.Chtimes(filepath.Join(top, name), when, when))
	}
}

func TestACopyHasModesTimesAndLinks(t *testing.T) {
	t.Parallel()
	top, when := t.TempDir(), time.Unix(1_000_000_000, 5000)
	someTree(t, top, when)
	t.Cleanup(func() {
		for _, name := range []string{"d", "c/d"} {
			_ = os.Chmod(filepath.Join(top, name), 0o700) //nolint:gosec // so that it can be removed
		}
	})
	testbed.Must(t, os.Mkdir(filepath.Join(top, "c"), 0o700))
	testbed.Must(t, replicate(anywhere{}, filepath.Join(top, "d"), filepath.Join(top, "c", "d"), nil))
	got := map[string]string{}
	testbed.Must(t, filepath.WalkDir(filepath.Join(top, "c"), func(p string, e fs.DirEntry, err error) error {
		testbed.Must(t, err)
		info, err := e.Info()
		testbed.Must(t, err)
		if name := strings.TrimPrefix(p, filepath.Join(top, "c")); name != "" {
			got[name] = info.Mode().String()
			if e.Type() != fs.ModeSymlink && !info.ModTime().Equal(when) {
				t.Errorf("%s is of %s", name, info.ModTime())
			}
		}
		return nil
	}))
	testbed.Diff(t, "copied", map[string]string{"/d": "dr-x--x---", "/d/f": "urwxr-x---", "/d/l": "Lrwxrwxrwx"}, got)
	raw, err := os.ReadFile(filepath.Join(top, "c", "d", "f"))
	testbed.Check(t, err == nil && string(raw) == "content", "%q, %v", raw, err)
}

func TestACopyThatIsStoppedLeavesNothing(t *testing.T) {
	t.Parallel()
	top, stopped := t.TempDir(), errors.New("stopped")
	someTree(t, top, time.Now())
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(top, "d"), 0o700) }) //nolint:gosec // so that it can be removed
	left := 2
	err := replicate(anywhere{}, filepath.Join(top, "d"), filepath.Join(top, "c"), func() error {
		if left--; left < 0 {
			return stopped
		}
		return nil
	})
	if !errors.Is(err, stopped) {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(top); err != nil || len(left) != 1 {
		t.Errorf("%v, %v", left, err)
	}
}

// The target of a link is relative to the directory that has the link, not to the path by which that was reached.
func TestAWriteFollowsLinksAsTheKernelDoes(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	testbed.Must(t, os.MkdirAll(filepath.Join(top, "a", "b"), 0o700))
	testbed.Must(t, os.Symlink("a/b", filepath.Join(top, "l")))
	testbed.Must(t, os.Symlink("../f", filepath.Join(top, "a", "b", "up")))
	p, err := throughLinks(filepath.Join(top, "l", "up"))
	testbed.Must(t, err)
	testbed.Must(t, (&Server{}).replace(p, farm.FSWrite{How: farm.FSReplace, Mode: -1}, strings.NewReader("x")))
	raw, err := os.ReadFile(filepath.Join(top, "a", "f"))
	testbed.Check(t, err == nil && string(raw) == "x", "%q, %v", raw, err)
	_, err = os.Lstat(filepath.Join(top, "f"))
	testbed.Check(t, errors.Is(err, fs.ErrNotExist), "another file was written: %v", err)
}

func TestTheStagingNameIsReservedAtAnyLevel(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w, err := Open(dir)
	testbed.Must(t, err)
	t.Cleanup(func() { _ = w.Close() })
	for _, p := range []string{stagingDir, stagingDir + "/x", "d/" + stagingDir, "d/" + stagingDir + "/x"} {
		_, err := w.Write(p, 0o644, strings.NewReader("x"))
		testbed.Check(t, farm.CodeOf(err) == farm.CodeInvalid, "%s: %v", p, err)
	}
	before := w.Snapshot()
	testbed.Must(t, os.MkdirAll(filepath.Join(dir, "d", stagingDir), 0o700)) // as writes of a file anywhere make it
	testbed.Must(t, os.WriteFile(filepath.Join(dir, "d", stagingDir, "half"), nil, 0o600))
	files, skipped, _ := before.Changes(0, 0)
	testbed.Check(t, len(files) == 0 && skipped == 0, "changed: %+v, %d", files, skipped)
}

// User code may put a pipe, a link or a file into the agent's directory.
func TestPutReplacesLinksAndPipes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	other := filepath.Join(dir, "other")
	testbed.Must(t, os.WriteFile(other, []byte("theirs"), 0o600))
	for name, make := range map[string]func(path string) error{
		"nothing": func(string) error { return nil },
		"file":    func(path string) error { return os.WriteFile(path, []byte("old"), 0o400) },
		"pipe":    func(path string) error { return unix.Mkfifo(path, 0o600) },
		"link":    func(path string) error { return os.Symlink(other, path) },
	} {
		path := filepath.Join(dir, name)
		testbed.Must(t, make(path))
		err := Put(path, []byte("ours"))
		testbed.Check(t, err == nil, "%s: %v", name, err)
		got, err := os.ReadFile(path)
		testbed.Check(t, err == nil && string(got) == "ours", "%s: %q, %v", name, got, err)
	}
	got, _ := os.ReadFile(other)
	testbed.Check(t, string(got) == "theirs", "the link's target holds %q", got)
	left, _ := filepath.Glob(filepath.Join(dir, "*-*"))
	testbed.Check(t, len(left) == 0, "left behind: %v", left)
}

// User code may replace the staging directory: uploads still work, and nothing is written outside it.
func TestUploadsReplaceAForeignStagingDirectory(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	for name, plant := range map[string]func(path string) error{
		"link": func(path string) error { return os.Symlink(outside, path) },
		"file": func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"pipe": func(path string) error { return unix.Mkfifo(path, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			work := t.TempDir()
			w, err := Open(work)
			testbed.Must(t, err)
			t.Cleanup(func() { _ = w.Close() })
			testbed.Must(t, plant(filepath.Join(work, stagingDir)))
			_, err = w.Write("f", 0o644, strings.NewReader("x"))
			testbed.Must(t, err)
			got, err := os.ReadFile(filepath.Join(work, "f"))
			testbed.Require(t, err == nil && string(got) == "x", "%q, %v", got, err)
			left, _ := os.ReadDir(outside)
			testbed.Require(t, len(left) == 0, "written outside: %v", left)
		})
	}
}

func TestATreeThatIsTooDeepIsACallersError(t *testing.T) {
	t.Parallel()
	if err := Problem(&os.PathError{Op: "openat", Path: "d", Err: unix.EMFILE}, "d"); farm.CodeOf(err) != farm.CodeTooLarge {
		t.Fatal(err)
	}
}

// makeFiles makes empty files in a workspace.
func makeFiles(t *testing.T, dir string, names ...string) {
	t.Helper()
	for _, name := range names {
		testbed.Must(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o700))
		testbed.Must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
}

// A virtual environment in the workspace made thousands of artifacts. What is in such folders is counted, for the outermost one.
func TestFoldersOfInstalledFilesAreLeftOutAndCounted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w, err := Open(dir)
	testbed.Must(t, err)
	t.Cleanup(func() { _ = w.Close() })
	makeFiles(t, dir, ".venv/old", "src/old.py")
	before := w.Snapshot()
	makeFiles(t, dir, ".venv/bin/python", ".venv/lib/__pycache__/a.pyc", ".venv/lib/venv/x", "node_modules/a/node_modules/b/c.js", "app/node_modules/d.js",
		"src/__pycache__/m.pyc", "src/m.py", ".git/HEAD", ".cache/pip/x", "venv/pyvenv.cfg", "venv2/kept", "data/.gitignore", "zz/venv", ".venvs/kept")
	files, skipped, left := before.Changes(0, 0)
	var names []string
	for _, f := range files {
		names = append(names, f.Path)
	}
	diff := cmp.Diff([]string{".venvs/kept", "data/.gitignore", "src/m.py", "venv2/kept", "zz/venv"}, names)
	testbed.Check(t, diff == "" && skipped == 0, "%d skipped, changed (-want +got):\n%s", skipped, diff)
	want := []agent.LeftOut{
		{Folder: ".venv", Files: 3},
		{Folder: ".cache", Files: 1},
		{Folder: ".git", Files: 1},
		{Folder: "app/node_modules", Files: 1},
		{Folder: "node_modules", Files: 1},
		{Folder: "venv", Files: 1},
	}
	testbed.Diff(t, "left out", want, left)
	if f, _, err := w.Open(".venv/bin/python"); err != nil {
		t.Errorf("what is left out cannot be read: %v", err)
	} else {
		_ = f.Close()
	}
	_, _, left = w.Snapshot().Changes(0, 0)
	testbed.Check(t, left == nil, "without a change: %+v", left)
}

func TestFoldersThatAreNotNamedAreCountedTogether(t *testing.T) {
	t.Parallel()
	for _, n := range []int{agent.MaxLeftOut - 1, agent.MaxLeftOut, agent.MaxLeftOut + 1, agent.MaxLeftOut + 2} {
		counts := map[string]int{"bad\xff/venv": 100}
		for i := range n {
			counts[fmt.Sprintf("%02d/venv", i)] = 1
		}
		left := maxLeftOut(counts)
		last, named := left[len(left)-1], min(n, agent.MaxLeftOut)
		if len(left) != named+1 || last.Folder != "" || last.Files != 100+n-named || left[0].Folder != "00/venv" {
			t.Errorf("%d folders: %+v", n, left)
		}
	}
}

func TestTheDocumentationNamesTheFolders(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"docs/rest.md", "api/wire/result.go"} {
		raw, err := os.ReadFile(filepath.Join("..", "..", "..", file))
		testbed.Must(t, err)
		for _, name := range leftOut {
			testbed.Check(t, strings.Contains(string(raw), name), "%s does not name %s", file, name)
		}
	}
}

// Code may set any time. One beyond the year 9999 cannot be written as JSON: the listing failed, and so did the job that made the file.
func TestTimesThatJSONCannotWriteAreBounded(t *testing.T) {
	t.Parallel()
	for seconds, want := range map[int64]int64{
		math.MinInt64: firstSecond, firstSecond: firstSecond, -1: -1, 0: 0, 1_700_000_000: 1_700_000_000, lastSecond: lastSecond, lastSecond + 1: lastSecond, math.MaxInt64: lastSecond,
	} {
		got := (&info{st: unix.Stat_t{Mtim: unix.Timespec{Sec: seconds}}}).modTime().UTC()
		_, err := got.MarshalJSON()
		testbed.Check(t, err == nil && got.Unix() == want, "%d is %s, %v", seconds, got, err)
	}
}

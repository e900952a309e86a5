package files

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/farm"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// someTree makes a directory with a file, a link, a pipe and what is being written.
func someTree(t *testing.T, top string, when time.Time) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Join(top, "d", stagingDir), 0o700))
	must(t, os.WriteFile(filepath.Join(top, "d", stagingDir, "half"), nil, 0o600))
	must(t, os.WriteFile(filepath.Join(top, "d", "f"), []byte("content"), 0o600))
	must(t, os.Symlink("nowhere", filepath.Join(top, "d", "l")))
	must(t, unix.Mkfifo(filepath.Join(top, "d", "p"), 0o600))
	for name, mode := range map[string]uint32{"d/f": 0o4750, "d": 0o510} {
		must(t, unix.Chmod(filepath.Join(top, name), mode))
		must(t, os.Chtimes(filepath.Join(top, name), when, when))
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
	must(t, os.Mkdir(filepath.Join(top, "c"), 0o700))
	must(t, replicate(anywhere{}, filepath.Join(top, "d"), filepath.Join(top, "c", "d"), nil))
	got := map[string]string{}
	must(t, filepath.WalkDir(filepath.Join(top, "c"), func(p string, e fs.DirEntry, err error) error {
		must(t, err)
		info, err := e.Info()
		must(t, err)
		if name := strings.TrimPrefix(p, filepath.Join(top, "c")); name != "" {
			got[name] = info.Mode().String()
			if e.Type() != fs.ModeSymlink && !info.ModTime().Equal(when) {
				t.Errorf("%s is of %s", name, info.ModTime())
			}
		}
		return nil
	}))
	if diff := cmp.Diff(map[string]string{"/d": "dr-x--x---", "/d/f": "urwxr-x---", "/d/l": "Lrwxrwxrwx"}, got); diff != "" {
		t.Errorf("copied (-want +got):\n%s", diff)
	}
	if raw, err := os.ReadFile(filepath.Join(top, "c", "d", "f")); err != nil || string(raw) != "content" {
		t.Errorf("%q, %v", raw, err)
	}
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
	must(t, os.MkdirAll(filepath.Join(top, "a", "b"), 0o700))
	must(t, os.Symlink("a/b", filepath.Join(top, "l")))
	must(t, os.Symlink("../f", filepath.Join(top, "a", "b", "up")))
	p, err := throughLinks(filepath.Join(top, "l", "up"))
	must(t, err)
	must(t, (&Server{}).replace(p, farm.FSWrite{How: farm.FSReplace, Mode: -1}, strings.NewReader("x")))
	if raw, err := os.ReadFile(filepath.Join(top, "a", "f")); err != nil || string(raw) != "x" {
		t.Errorf("%q, %v", raw, err)
	}
	if _, err := os.Lstat(filepath.Join(top, "f")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("another file was written: %v", err)
	}
}

func TestTheStagingNameIsReservedAtAnyLevel(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w, err := Open(dir)
	must(t, err)
	t.Cleanup(func() { _ = w.Close() })
	for _, p := range []string{stagingDir, stagingDir + "/x", "d/" + stagingDir, "d/" + stagingDir + "/x"} {
		if _, err := w.Write(p, 0o644, strings.NewReader("x")); farm.CodeOf(err) != farm.CodeInvalid {
			t.Errorf("%s: %v", p, err)
		}
	}
	before := w.Snapshot()
	must(t, os.MkdirAll(filepath.Join(dir, "d", stagingDir), 0o700)) // as writes of a file anywhere make it
	must(t, os.WriteFile(filepath.Join(dir, "d", stagingDir, "half"), nil, 0o600))
	if files, skipped, _ := before.Changes(0, 0); len(files) != 0 || skipped != 0 {
		t.Errorf("changed: %+v, %d", files, skipped)
	}
}

package files

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// User code may put a pipe, a link or a file into the agent's directory.
func TestPutReplacesLinksAndPipes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	other := filepath.Join(dir, "other")
	if err := os.WriteFile(other, []byte("theirs"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, make := range map[string]func(path string) error{
		"nothing": func(string) error { return nil },
		"file":    func(path string) error { return os.WriteFile(path, []byte("old"), 0o400) },
		"pipe":    func(path string) error { return unix.Mkfifo(path, 0o600) },
		"link":    func(path string) error { return os.Symlink(other, path) },
	} {
		path := filepath.Join(dir, name)
		if err := make(path); err != nil {
			t.Fatal(err)
		}
		if err := Put(path, []byte("ours")); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != "ours" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if got, _ := os.ReadFile(other); string(got) != "theirs" {
		t.Errorf("the link's target holds %q", got)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
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
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = w.Close() })
			if err := plant(filepath.Join(work, stagingDir)); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write("f", 0o644, strings.NewReader("x")); err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(filepath.Join(work, "f")); err != nil || string(got) != "x" {
				t.Fatalf("%q, %v", got, err)
			}
			if left, _ := os.ReadDir(outside); len(left) > 0 {
				t.Fatalf("written outside: %v", left)
			}
		})
	}
}

func TestATreeThatIsTooDeepIsACallersError(t *testing.T) {
	t.Parallel()
	if err := Problem(&os.PathError{Op: "openat", Path: "d", Err: unix.EMFILE}, "d"); farm.CodeOf(err) != farm.CodeTooLarge {
		t.Fatal(err)
	}
}

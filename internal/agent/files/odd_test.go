package files_test

import (
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent/files"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// A file deep in a tree has a path that the worker refuses, and took that for an agent that breaks the protocol: the sandbox was lost.
func TestAChangedFileWithATooLongPathIsSkipped(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w, err := files.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Close() }()
	before := w.Snapshot()
	fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.Repeat("d", 99)
	for range farm.MaxPathBytes / 100 { // the deepest directory has a path of MaxPathBytes-1 bytes
		if err := unix.Mkdirat(fd, name, 0o700); err != nil {
			t.Fatal(err)
		}
		below, err := unix.Openat(fd, name, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		_ = unix.Close(fd)
		if fd = below; err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"deep", "shallow"} {
		at := fd
		if file == "shallow" {
			at = unix.AT_FDCWD
			file = filepath.Join(dir, file)
		}
		f, err := unix.Openat(at, file, unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		_ = unix.Close(f)
	}
	_ = unix.Close(fd)
	changed, skipped, _ := before.Changes(0, 0)
	if len(changed) != 1 || changed[0].Path != "shallow" || skipped != 1 {
		t.Errorf("%d changed files, %d skipped", len(changed), skipped)
	}
}

//go:build unix

package bridge_test

import (
	"path/filepath"
	"syscall"
	"testing"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestOnlyRegularFilesAreRead(t *testing.T) {
	t.Parallel()
	r, dir, _ := roots(t)
	testbed.Must(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	for _, path := range []string{"pipe", "deep", ".", "missing.txt", ""} {
		if _, _, err := read(r, path); err == nil || farm.CodeOf(err) != farm.CodeInvalid {
			t.Errorf("%q: %v", path, err)
		}
	}
}

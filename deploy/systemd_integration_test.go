//go:build integration

package main_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/testbed"
)

// TestUnitsAreValid asks systemd, which `make test` installs where it is missing.
func TestUnitsAreValid(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	args := []string{"verify", "--man=no", "--recursive-errors=no"}
	for name, content := range units(t) {
		path := filepath.Join(dir, name)
		testbed.Must(t, os.WriteFile(path, []byte(strings.ReplaceAll(content, "/usr/local/bin/sandfarm", "/bin/sh")), 0o600))
		args = append(args, path)
	}
	out, err := exec.CommandContext(t.Context(), "systemd-analyze", args...).CombinedOutput()
	if err != nil || strings.Contains(string(out), dir) { // it warns of unknown lines without an error
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}

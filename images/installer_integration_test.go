//go:build integration

package images_test

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/images"
	"github.com/sandfarm/sandfarm/internal/index"
)

func TestProgramRuns(t *testing.T) {
	t.Parallel()
	packages, err := index.New(index.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = packages.Close() })
	var fetch images.FetchWheel = func(ctx context.Context, project, file, sha256 string) (io.ReadCloser, int64, error) {
		return packages.Fetch(ctx, project, file, sha256)
	}
	data, err := images.Installer(t.Context(), fetch, runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "uv")
	if err := os.WriteFile(program, data, 0o755); err != nil { //nolint:gosec // it is a program
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), program, "--version").Output()
	if err != nil || !strings.Contains(string(out), images.InstallerVersion) {
		t.Errorf("uv --version: %q, %v", out, err)
	}
}

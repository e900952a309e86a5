//go:build integration

package uv_test

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/index"
	"github.com/sandfarm/sandfarm/internal/uv"
)

func TestProgramRuns(t *testing.T) {
	t.Parallel()
	packages, err := index.New(index.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = packages.Close() })
	var fetch uv.Fetch = func(ctx context.Context, project, file, sha256 string) (io.ReadCloser, int64, error) {
		return packages.Fetch(ctx, project, file, sha256)
	}
	data, err := uv.Program(t.Context(), fetch, runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "uv")
	if err := os.WriteFile(program, data, 0o755); err != nil { //nolint:gosec // it is a program
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), program, "--version").Output()
	if err != nil || !strings.Contains(string(out), uv.Version) {
		t.Errorf("uv --version: %q, %v", out, err)
	}
}

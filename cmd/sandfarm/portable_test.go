package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// serverParts are what only a farm needs, by the beginning of their import path. Most of them build on Linux alone.
var serverParts = []string{
	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/farmd",
	"github.com/sandfarm/sandfarm/internal/agent",
	"github.com/sandfarm/sandfarm/internal/blob",
	"github.com/sandfarm/sandfarm/internal/embedded",
	"github.com/sandfarm/sandfarm/internal/engine",
	"github.com/sandfarm/sandfarm/internal/queue",
	"github.com/sandfarm/sandfarm/internal/store",
	"github.com/sandfarm/sandfarm/worker",
	"github.com/sandfarm/sandfarm/scheduler",
	"github.com/docker/",
	"github.com/gin-gonic/",
	"github.com/redis/",
}

// goTool runs the go command for another system.
func goTool(t *testing.T, system, arch string, args ...string) string {
	t.Helper()
	c := exec.CommandContext(t.Context(), "go", args...)
	c.Env = append(os.Environ(), "GOOS="+system, "GOARCH="+arch, "CGO_ENABLED=0")
	var stderr strings.Builder
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%s/%s: go %s: %v\n%s", system, arch, strings.Join(args, " "), err, stderr.String())
	}
	return string(out)
}

func TestClientNeedsNoServerParts(t *testing.T) {
	t.Parallel()
	for _, system := range []string{"darwin", "windows"} {
		for path := range strings.Lines(goTool(t, system, "amd64", "list", "-deps", ".")) {
			for _, part := range serverParts {
				if strings.HasPrefix(path, part) {
					t.Errorf("%s: the client imports %s", system, path)
				}
			}
		}
	}
}

func TestClientBuildsOnOtherSystems(t *testing.T) {
	t.Parallel()
	for _, target := range [][2]string{{"darwin", "arm64"}, {"windows", "amd64"}} {
		// -trimpath and the flags of make dist, so that both use the same build cache.
		goTool(t, target[0], target[1], "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(t.TempDir(), "sandfarm"), ".")
	}
}

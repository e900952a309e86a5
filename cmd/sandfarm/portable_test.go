package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/testbed"
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

// TestGoInstallGivesAClient builds the program as "go install …/cmd/sandfarm@version" does: without the agents that make
// build puts into the tree.
func TestGoInstallGivesAClient(t *testing.T) {
	t.Parallel()
	built, err := filepath.Glob("../../internal/agent/binary/bin/agent-*")
	testbed.Must(t, err)
	missing := map[string]string{}
	for _, path := range built {
		path, err = filepath.Abs(path)
		testbed.Must(t, err)
		missing[path] = ""
	}
	text, err := json.Marshal(map[string]any{"Replace": missing})
	testbed.Must(t, err)
	dir := t.TempDir()
	overlay, program := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "sandfarm")
	testbed.Must(t, os.WriteFile(overlay, text, 0o600))
	goTool(t, runtime.GOOS, runtime.GOARCH, "build", "-trimpath", "-ldflags", "-s -w", "-overlay", overlay, "-o", program, ".")

	run := func(args ...string) string {
		c := exec.CommandContext(t.Context(), program, args...)
		c.Env = append(os.Environ(), "SANDFARM_URL=http://127.0.0.1:1", "SANDFARM_DATA="+filepath.Join(dir, "data"), "SANDFARM_REDIS_URL=", "SANDFARM_S3_ENDPOINT=",
			"SANDFARM_API_LISTEN="+testbed.Address(t), "SANDFARM_S3_LISTEN="+testbed.Address(t), "SANDFARM_METRICS_LISTEN=none") // a farm may run here
		out, _ := c.CombinedOutput() // only the output matters
		return string(out)
	}
	if out := run("sandbox", "ls"); !strings.Contains(out, "no farm answers at http://127.0.0.1:1") {
		t.Errorf("sandbox ls: %s", out)
	}
	for _, verb := range []string{"up", "worker"} {
		if out := run(verb); strings.Count(out, "\n") != 1 || !strings.Contains(out, "does not contain the agent") || !strings.Contains(out, "make build") {
			t.Errorf("%s does not say in one line what is missing: %s", verb, out)
		}
	}
	if out := run("--version"); !strings.HasPrefix(out, "sandfarm version ") || strings.TrimSpace(out) == "sandfarm version" {
		t.Errorf("--version: %q", out)
	}
}

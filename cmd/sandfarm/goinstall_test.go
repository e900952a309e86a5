package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestGoInstallGivesAClient builds the program as "go install …/cmd/sandfarm@version" does: without the agents that make
// build puts into the tree.
func TestGoInstallGivesAClient(t *testing.T) {
	t.Parallel()
	built, err := filepath.Glob("../../internal/agent/binary/bin/agent-*")
	if err != nil {
		t.Fatal(err)
	}
	missing := map[string]string{}
	for _, path := range built {
		if path, err = filepath.Abs(path); err != nil {
			t.Fatal(err)
		}
		missing[path] = ""
	}
	text, err := json.Marshal(map[string]any{"Replace": missing})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	overlay, program := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "sandfarm")
	if err := os.WriteFile(overlay, text, 0o600); err != nil {
		t.Fatal(err)
	}
	goTool(t, runtime.GOOS, runtime.GOARCH, "build", "-trimpath", "-ldflags", "-s -w", "-overlay", overlay, "-o", program, ".")

	run := func(args ...string) string {
		c := exec.CommandContext(t.Context(), program, args...)
		c.Env = append(os.Environ(), "SANDFARM_URL=http://127.0.0.1:1", "SANDFARM_DATA="+filepath.Join(dir, "data"), "SANDFARM_REDIS_URL=", "SANDFARM_S3_ENDPOINT=")
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

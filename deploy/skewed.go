package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

//go:embed clock.go.txt
var clock string

// buildSkewed builds a Go program whose clock a test can shift while it runs: time.Now adds the seconds that the file named by
// SANDFARM_TEST_CLOCK has, a little-endian int64. Everything in the program sees that clock: the farm, its libraries, signatures and
// logs. Timers do not change, as when a host's clock is set.
func buildSkewed(ctx context.Context, out, pkg string) (err error) {
	if out == "" || pkg == "" {
		return errors.New("name the program with -o, and one package")
	}
	root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return fmt.Errorf("find Go: %w", err)
	}
	dir, err := os.MkdirTemp("", "skewed")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	source := filepath.Join(strings.TrimSpace(string(root)), "src", "time")
	text, err := os.ReadFile(filepath.Join(source, "time.go")) //nolint:gosec // of the installed Go
	if err != nil {
		return err
	}
	const reading = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	changed := strings.Replace(string(text), reading, reading+"\tsec += skew()\n", 1)
	if changed == string(text) {
		return errors.New("this Go has another time.Now: change deploy/skewed.go")
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {
		filepath.Join(source, "time.go"): filepath.Join(dir, "time.go"), filepath.Join(source, "skew.go"): filepath.Join(dir, "skew.go"),
	}})
	if err != nil {
		return err
	}
	for name, content := range map[string]string{"time.go": changed, "skew.go": clock, "overlay.json": string(overlay)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			return err
		}
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "-o", out, pkg)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build %s: %w", pkg, err)
	}
	return nil
}

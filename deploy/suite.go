package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	// maxFlaky is how many tests of one run may pass at their second try only.
	maxFlaky = 3
	// shownSlowest is how many of the slowest tests are printed.
	shownSlowest = 10
	// resultsEnv names the file to which each suite appends its counts, for the steps it is part of.
	resultsEnv = "SANDFARM_TEST_RESULTS"
	// flakyLog has the outputs of flaky tests of the last runs.
	flakyLog = "bin/flaky.log"
)

// suite is one run of go test.
type suite struct {
	out          io.Writer
	packages     []string
	flags        []string // of go test
	rerun, skips bool
}

// run gives the exit code: 0 for green.
func (s suite) run(ctx context.Context) (int, error) {
	tool, err := gotestsum(ctx)
	if err != nil {
		return 0, err
	}
	events, err := os.CreateTemp("", "checks-*.json")
	if err != nil {
		return 0, fmt.Errorf("make the file of test events: %w", err)
	}
	defer func() { _ = os.Remove(events.Name()) }()
	defer func() { _ = events.Close() }()
	format := "pkgname"
	if slices.Contains(s.flags, "-v") {
		format = "standard-verbose"
	}
	args := []string{"--format", format, "--format-icons", "text", "--format-hide-empty-pkg", "--hide-summary", "all", "--jsonfile", events.Name(), "--packages", strings.Join(s.packages, " ")}
	if s.rerun {
		// gotestsum runs nothing again if more tests have failed; a flaky test counts with its parents.
		args = append(args, "--rerun-fails=1", "--rerun-fails-max-failures=9", "--rerun-fails-abort-on-data-race")
	}
	cmd := exec.CommandContext(ctx, tool, append(append(args, "--", "-vet=off"), s.flags...)...) // the linter vets
	cmd.Stdout, cmd.Stderr = s.out, s.out
	cmd.Cancel, cmd.WaitDelay = func() error { return cmd.Process.Signal(os.Interrupt) }, 10*time.Second
	failed := false
	if err := cmd.Run(); err != nil {
		if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) {
			return 0, fmt.Errorf("run %s: %w", tool, err)
		}
		failed = true
	}
	r, err := readEvents(events)
	if err != nil {
		return 0, err
	}
	return s.report(r, failed)
}

// report prints what gotestsum does not, and records the counts.
func (s suite) report(r *results, failed bool) (int, error) {
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(s.out, format+"\n", args...) }
	for _, t := range r.failed {
		say("\n=== FAILED %s\n%s", t, r.output[t])
	}
	if err := logFlaky(r); err != nil {
		return 0, err
	}
	for _, t := range r.flaky {
		say("\n=== FLAKY %s: it failed, and passed alone (also in %s)\n%s", t, flakyLog, r.output[t])
	}
	for i, t := range r.slowest() {
		if i == 0 {
			say("\nThe slowest tests:")
		}
		say("  %7.1f s  %s", r.seconds[t].Seconds(), t)
	}
	reasons := r.reasons(s.skips)
	if failed && len(reasons) == 0 {
		reasons = append(reasons, "go test failed")
	}
	say("\n%d passed, %d failed, %d skipped", len(r.passed), len(r.failed), len(r.skipped))
	for _, reason := range reasons {
		say("RED: %s", reason)
	}
	if err := record(counts{Passed: len(r.passed), Failed: len(r.failed), Skipped: len(r.skipped), Flaky: len(r.flaky), Notes: reasons}); err != nil {
		return 0, err
	}
	if len(reasons) > 0 {
		return 1, nil
	}
	return 0, nil
}

// logFlaky appends the outputs of flaky tests to a file, which outlives the terminal.
func logFlaky(r *results) error {
	if len(r.flaky) == 0 {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(flakyLog), 0o750); err != nil {
		return fmt.Errorf("make the folder of %s: %w", flakyLog, err)
	}
	f, err := os.OpenFile(flakyLog, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open the log of flaky tests: %w", err)
	}
	for _, t := range r.flaky {
		_, _ = fmt.Fprintf(f, "=== FLAKY %s\n%s\n", t, r.output[t]) // a full disk shows at Close
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("write %s: %w", flakyLog, err)
	}
	return nil
}

// gotestsum gives the path of the pinned gotestsum, which is built once.
func gotestsum(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "deploy/setup.sh", "gotestsum").Output()
	if err != nil {
		return "", fmt.Errorf("deploy/setup.sh gotestsum: %w: %s", err, out)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1], nil
}

// flakyFor is how long a test may stay in the list of flaky tests.
const flakyFor = 14 * 24 * time.Hour

// checkFlakyList reads the list of tests that were flaky twice: a line for each with name, date and reason, between which is a tab. A line that is
// older than flakyFor, or cannot be read, is an error: such a test must be mended.
func checkFlakyList(path string, now time.Time) error {
	f, err := os.Open(path) //nolint:gosec // G304: the path is this program's own
	if err != nil {
		return fmt.Errorf("open the list of flaky tests: %w", err)
	}
	defer func() { _ = f.Close() }()
	var wrong []error
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Split(line, "\t")
		if len(fields) != 3 || strings.TrimSpace(fields[2]) == "" {
			wrong = append(wrong, fmt.Errorf("%s:%d: write the test's name, the date (2006-01-02) and the reason, with tabs between them", path, n))
			continue
		}
		since, err := time.Parse(time.DateOnly, fields[1])
		if err != nil {
			wrong = append(wrong, fmt.Errorf("%s:%d: %q is no date such as 2006-01-02", path, n, fields[1]))
		} else if age := now.Sub(since); age > flakyFor {
			wrong = append(wrong, fmt.Errorf("%s:%d: %s has been flaky for %d days: mend it", path, n, fields[0], int(age.Hours()/24)))
		}
	}
	if err := lines.Err(); err != nil {
		wrong = append(wrong, fmt.Errorf("read %s: %w", path, err))
	}
	return errors.Join(wrong...)
}

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"
)

// pageHead is the page without rows.
const pageHead = `# Verification

How each part of ` + "`make test-all`" + ` ended when it last ran. ` + "`make test-all PART=faults`" + ` runs one part and writes its row; red rows stay until the
part is green. The benchmarks' own figures are in [benchmarks.md](benchmarks.md).

| part | verdict | passed | failed | skipped | flaky | seconds | date | commit | machine | notes |
|---|---|--:|--:|--:|--:|--:|---|---|---|---|
`

// writeRow puts the row of a step at a commit into the page, in place of its former row. A page that does not exist is made.
func writeRow(path string, one step, commit string, now time.Time) error {
	text, err := os.ReadFile(path) //nolint:gosec // G304: the path is the caller's own
	if errors.Is(err, os.ErrNotExist) {
		text, err = []byte(pageHead), nil
	}
	if err != nil {
		return fmt.Errorf("read the page: %w", err)
	}
	if err := os.WriteFile(path, []byte(withRow(string(text), one, now.UTC().Format(time.DateOnly), commit, machine())), 0o644); err != nil { //nolint:gosec // G306: a page for everybody
		return fmt.Errorf("write the page: %w", err)
	}
	return nil
}

// withRow is the page with the row of a step. Rows are sorted by part.
func withRow(page string, one step, date, commit, machine string) string {
	part := strings.TrimPrefix(one.name, "test-")
	notes := strings.NewReplacer("|", "\\|", "\n", " ").Replace(strings.Join(one.Notes, "; "))
	tests := [3]string{"", "", ""}
	if one.Passed+one.Failed+one.Skipped > 0 {
		tests = [3]string{fmt.Sprint(one.Passed), fmt.Sprint(one.Failed), fmt.Sprint(one.Skipped)}
	}
	row := fmt.Sprintf("| %s | %s | %s | %s | %s | %d | %.0f | %s | %s | %s | %s |",
		part, one.verdict, tests[0], tests[1], tests[2], one.Flaky, one.took.Seconds(), date, commit, machine, notes)
	var before, rows, after []string
	for line := range strings.Lines(page) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| part |"):
			if !strings.HasPrefix(line, "| "+part+" |") {
				rows = append(rows, line)
			}
		case len(before) > 0 && strings.HasPrefix(before[len(before)-1], "|---"):
			after = append(after, line)
		default:
			before = append(before, line)
		}
	}
	rows = append(rows, row)
	slices.Sort(rows)
	return strings.Join(slices.Concat(before, rows, after), "\n") + "\n"
}

// commit is the short name of the checked-out commit, with + when files other than the page are changed.
func commit(ctx context.Context, page string) string {
	name, err := exec.CommandContext(ctx, "git", "rev-parse", "--short", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	changed, err := exec.CommandContext(ctx, "git", "status", "--porcelain", "--", ".", ":!"+page).Output() //nolint:gosec // G204: the path is the caller's own
	if err != nil || len(changed) > 0 {
		return strings.TrimSpace(string(name)) + "+"
	}
	return strings.TrimSpace(string(name))
}

// machine says what the checks ran on.
func machine() string {
	memory := ""
	if info, err := os.ReadFile("/proc/meminfo"); err == nil {
		var kib int
		if _, err := fmt.Sscanf(string(info), "MemTotal: %d kB", &kib); err == nil {
			memory = fmt.Sprintf(", %d GiB", (kib+1<<19)>>20)
		}
	}
	return fmt.Sprintf("%d cores%s, %s/%s", runtime.NumCPU(), memory, runtime.GOOS, runtime.GOARCH)
}

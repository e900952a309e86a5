package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// counts are those of one suite, as a line of the file that resultsEnv names.
type counts struct {
	Passed, Failed, Skipped, Flaky int
	Notes                          []string `json:",omitempty"`
}

func (c *counts) add(more counts) {
	c.Passed, c.Failed, c.Skipped, c.Flaky = c.Passed+more.Passed, c.Failed+more.Failed, c.Skipped+more.Skipped, c.Flaky+more.Flaky
	c.Notes = append(c.Notes, more.Notes...)
}

// record appends the counts of a suite to the file of its step; without a step it does nothing.
func record(c counts) error {
	path := os.Getenv(resultsEnv)
	if path == "" {
		return nil
	}
	line, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("encode the counts: %w", err)
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600) //nolint:gosec // G304: the path is the caller's own
	if err != nil {
		return fmt.Errorf("open the file of counts: %w", err)
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}

// readCounts adds up what the suites of a step have recorded.
func readCounts(path string) (sum counts, err error) {
	f, err := os.Open(path) //nolint:gosec // G304: the path is this program's own
	if errors.Is(err, os.ErrNotExist) {
		return counts{}, nil // a step without tests
	}
	if err != nil {
		return counts{}, fmt.Errorf("open the file of counts: %w", err)
	}
	defer func() { _ = f.Close() }()
	for lines := json.NewDecoder(bufio.NewReader(f)); ; {
		var c counts
		if err := lines.Decode(&c); errors.Is(err, io.EOF) {
			return sum, nil
		} else if err != nil {
			return counts{}, fmt.Errorf("read the file of counts: %w", err)
		}
		sum.add(c)
	}
}

// step is how one target ended.
type step struct {
	name    string
	verdict string // ok or RED
	took    time.Duration
	counts
}

// stepper makes targets.
type stepper struct {
	out         io.Writer
	limit, each time.Duration
	page        string
}

// run gives the exit code: 0 if all targets were green.
func (s stepper) run(ctx context.Context, targets []string) (int, error) {
	if s.limit > 0 {
		var done context.CancelFunc
		ctx, done = context.WithTimeout(ctx, s.limit)
		defer done()
	}
	var all []step
	code := 0
	for _, target := range targets {
		at := ""
		if s.page != "" {
			at = commit(ctx, s.page)
		}
		one, err := s.make(ctx, target)
		if err != nil {
			return 0, err
		}
		all = append(all, one)
		if one.verdict != "ok" {
			code = 1
		}
		if s.page != "" {
			if err := writeRow(s.page, one, at, time.Now()); err != nil {
				return 0, err
			}
		} else if code != 0 {
			break
		}
	}
	s.summary(all, len(targets))
	return code, nil
}

// make makes one target in a process group of its own, which is ended with it when it runs past its limit.
func (s stepper) make(ctx context.Context, target string) (step, error) {
	results, err := os.MkdirTemp("", "checks-")
	if err != nil {
		return step{}, fmt.Errorf("make a folder for the counts: %w", err)
	}
	defer func() { _ = os.RemoveAll(results) }()
	file := results + "/counts"
	if s.each > 0 {
		var done context.CancelFunc
		ctx, done = context.WithTimeout(ctx, s.each)
		defer done()
	}
	_, _ = fmt.Fprintf(s.out, "\n### %s\n", target)
	began := time.Now()
	cmd := exec.CommandContext(ctx, "make", "--no-print-directory", target)
	cmd.Stdout, cmd.Stderr, cmd.Env = s.out, s.out, append(os.Environ(), resultsEnv+"="+file)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel, cmd.WaitDelay = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }, 20*time.Second
	failure := cmd.Run()
	if ctx.Err() != nil && cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what did not end by the signal
	}
	one := step{name: target, verdict: "ok", took: time.Since(began)}
	if one.counts, err = readCounts(file); err != nil {
		return step{}, err
	}
	if failure != nil {
		one.verdict = "RED"
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			one.Notes = append(one.Notes, fmt.Sprintf("ran past its limit and was ended after %s", one.took.Round(time.Second)))
		} else if len(one.Notes) == 0 {
			one.Notes = []string{failure.Error()}
		}
	}
	_, _ = fmt.Fprintf(s.out, "### %s: %s after %.0f s\n", target, one.verdict, one.took.Seconds())
	return one, nil
}

func (s stepper) summary(all []step, of int) {
	_, _ = fmt.Fprintf(s.out, "\n### summary\n")
	var sum counts
	var took time.Duration
	for _, one := range all {
		_, _ = fmt.Fprintf(s.out, "  %-3s %6.0f s  %s", one.verdict, one.took.Seconds(), one.name)
		if tests := one.Passed + one.Failed + one.Skipped; tests > 0 {
			_, _ = fmt.Fprintf(s.out, ": %d tests, %d flaky", tests, one.Flaky)
		}
		_, _ = fmt.Fprintln(s.out)
		for _, note := range one.Notes {
			_, _ = fmt.Fprintf(s.out, "      %s\n", note)
		}
		sum.add(one.counts)
		took += one.took
	}
	if len(all) < of {
		_, _ = fmt.Fprintf(s.out, "  %d steps after %s did not run\n", of-len(all), all[len(all)-1].name)
	}
	_, _ = fmt.Fprintf(s.out, "  %.0f s together\n\n%d passed, %d failed, %d skipped\n", took.Seconds(), sum.Passed, sum.Failed, sum.Skipped)
}

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

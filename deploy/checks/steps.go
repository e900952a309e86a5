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

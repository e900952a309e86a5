//go:build integration

package main_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// head prints the head of the table.
func (r *attackRun) head(t *testing.T, runtime string) {
	t.Helper()
	r.print(t, fmt.Sprintf("Attacks under %s. The times are a neighbour's print(1), 95th percentile: before the attack, and beside it.\n\n%-40s %-14s %8s %10s %11s %6s\n",
		runtime, "attack", "result", "seconds", "quiet ms", "beside ms", "ratio"))
}

// done keeps a row and prints it with its problems.
func (r *attackRun) done(t *testing.T, row attackRow) {
	t.Helper()
	r.rows = append(r.rows, row)
	name := row.group + "/" + row.name
	if r.hibernates {
		name += ", hibernated"
	}
	text := line(name, row.result(), row.took, row.quiet, row.beside)
	for _, problem := range row.problems {
		text += "    " + strings.ReplaceAll(problem, "\n", "\n    ") + "\n"
	}
	r.print(t, text)
}

// result is one word for the outcome.
func (row attackRow) result() string {
	switch {
	case len(row.problems) == 0:
		return "contained"
	case row.known != "":
		return "known"
	default:
		return "NOT CONTAINED"
	}
}

// report prints what became of all attacks.
func (r *attackRun) report(t *testing.T) {
	t.Helper()
	var quiet, beside []time.Duration
	count, known := map[string]int{}, ""
	for _, row := range r.rows {
		quiet, beside = append(quiet, row.quiet...), append(beside, row.beside...)
		count[row.result()]++
		if row.known != "" {
			known += fmt.Sprintf("  %s/%s: %s\n", row.group, row.name, row.known)
		}
	}
	text := line("all", "", 0, quiet, beside) + fmt.Sprintf("\n%d of %d attacks contained", count["contained"], len(r.rows))
	if known != "" {
		text += fmt.Sprintf(", %d known not to be:\n%s", count["known"], known)
	}
	r.print(t, text+"\n")
}

// print logs a text, or appends it to the file that SANDFARM_TEST_REPORT names, so that a run that is ended leaves what it found.
func (r *attackRun) print(t *testing.T, text string) {
	t.Helper()
	name := os.Getenv("SANDFARM_TEST_REPORT")
	if name == "" {
		t.Log(text)
		return
	}
	file, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = file.Close() }()
	if _, err := file.WriteString(text); err != nil {
		t.Error(err)
	}
}

// line prints one row. Ratios of single attacks have few samples: that of all is the one to look at.
func line(name, result string, took time.Duration, quiet, beside []time.Duration) string {
	before, during := percentile95(quiet), percentile95(beside)
	ratio := 0.0
	if before > 0 {
		ratio = during.Seconds() / before.Seconds()
	}
	return fmt.Sprintf("%-40s %-14s %8.1f %10.1f %11.1f %6.1f\n", name, result, took.Seconds(), ms(before), ms(during), ratio)
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// percentile95 is the smallest time that 95 of 100 do not exceed, 0 if there is none.
func percentile95(times []time.Duration) time.Duration {
	if len(times) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(times))
	return sorted[(len(sorted)*95+99)/100-1]
}

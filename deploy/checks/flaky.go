package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

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

package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// event is one line of "go test -json" (see "go doc test2json"), and of the build output that newer versions mix in.
type event struct {
	Action     string
	Package    string
	ImportPath string // of build-output
	Test       string
	Elapsed    float64
	Output     string
}

// test is one test, or a whole package if its name is empty.
type test struct{ pkg, name string }

func (t test) String() string {
	if t.name == "" {
		return t.pkg
	}
	return t.pkg + " " + t.name
}

// maxOutput is how much output of one test is kept.
const maxOutput = 256 << 10

type summary struct {
	out     io.Writer
	outputs map[test]*strings.Builder // of tests that have not passed
	passed  map[string]int            // tests for each package
	seconds map[test]float64
	failed  []test
	skipped []test
	open    map[string]bool // packages that have started and not ended
	running map[test]bool   // tests that have started and not ended
	other   []string        // lines that are not events
}

func newSummary(out io.Writer) *summary {
	return &summary{
		out: out, outputs: map[test]*strings.Builder{}, passed: map[string]int{}, seconds: map[test]float64{},
		open: map[string]bool{}, running: map[test]bool{},
	}
}

func (s *summary) read(in io.Reader) error {
	lines := bufio.NewReaderSize(in, 1<<20)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			s.line(line)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read test output: %w", err)
		}
	}
}

func (s *summary) line(line string) {
	var e event
	if json.Unmarshal([]byte(line), &e) != nil || e.Action == "" {
		s.other = append(s.other, strings.TrimRight(line, "\n"))
		s.printf("%s\n", strings.TrimRight(line, "\n"))
		return
	}
	t := test{e.Package, e.Test}
	switch e.Action {
	case "start":
		s.open[t.pkg] = true
	case "run":
		s.running[t] = true
	case "output":
		s.keep(t, e.Output)
	case "build-output":
		s.printf("%s", e.Output)
	case "pass":
		s.end(t)
		delete(s.outputs, t)
		s.seconds[t] = e.Elapsed
		if t.name == "" {
			s.printf("ok    %-60s %4d tests %7.1fs\n", short(t.pkg), s.passed[t.pkg], e.Elapsed)
			return
		}
		s.passed[t.pkg]++
	case "skip":
		s.end(t)
		if t.name != "" { // a package that is "skipped" has no tests
			s.skipped = append(s.skipped, t)
		}
	case "fail":
		if t.name == "" {
			s.failUnended(t.pkg)
		}
		s.end(t)
		s.failed = append(s.failed, t)
		s.seconds[t] = e.Elapsed
		s.printf("FAIL  %s %.1fs\n", t, e.Elapsed)
	}
}

func (s *summary) end(t test) {
	if t.name == "" {
		delete(s.open, t.pkg)
	} else {
		delete(s.running, t)
	}
}

// failUnended counts the tests of a package as failed that it ended without: at the time limit go test attributes its stacks to one of them.
func (s *summary) failUnended(pkg string) {
	for _, t := range slices.SortedFunc(maps.Keys(s.running), func(a, b test) int { return cmp.Compare(a.name, b.name) }) {
		if t.pkg == pkg {
			s.failed = append(s.failed, t)
			delete(s.running, t)
		}
	}
}

// keep stores a test's output until it has passed. The start is the most useful part, so output beyond the limit is dropped.
func (s *summary) keep(t test, text string) {
	b := s.outputs[t]
	if b == nil {
		b = &strings.Builder{}
		s.outputs[t] = b
	}
	if b.Len()+len(text) <= maxOutput {
		b.WriteString(text)
	}
}

func (s *summary) finish(took time.Duration, noSkip bool) int {
	for pkg := range s.open { // go test itself was ended
		s.failed = append(s.failed, test{pkg: pkg})
		s.keep(test{pkg: pkg}, "the test run was cut before this package had ended\n")
	}
	total := 0
	for _, n := range s.passed {
		total += n
	}
	s.printFailures()
	s.printSlow()
	for _, t := range s.skipped {
		s.printf("skipped: %s %s\n", t, reason(s.outputs[t]))
	}
	// A package that failed only because its tests did is not counted again.
	failed := 0
	for _, t := range s.failed {
		if t.name != "" || !slices.ContainsFunc(s.failed, func(o test) bool { return o.pkg == t.pkg && o.name != "" }) {
			failed++
		}
	}
	verdict, code := "PASS", 0
	if failed > 0 || len(s.other) > 0 || total == 0 || noSkip && len(s.skipped) > 0 {
		verdict, code = "FAIL", 1
	}
	s.printf("\n%s: %d passed, %d failed, %d skipped in %d packages, %s\n",
		verdict, total, failed, len(s.skipped), len(s.passed), took.Round(time.Second))
	return code
}

func (s *summary) printFailures() {
	if len(s.failed) == 0 {
		return
	}
	s.printf("\n--- what failed said ---\n")
	for _, t := range s.failed {
		b := s.outputs[t]
		if b == nil || strings.TrimSpace(b.String()) == "" {
			continue
		}
		s.printf("\n%s\n%s", t, b.String())
		if b.Len() > maxOutput-4096 {
			s.printf("(more output was left out)\n")
		}
	}
}

// printSlow prints the slowest packages.
func (s *summary) printSlow() {
	var pkgs []test
	for t := range maps.Keys(s.seconds) {
		if t.name == "" && s.seconds[t] >= 5 {
			pkgs = append(pkgs, t)
		}
	}
	slices.SortFunc(pkgs, func(a, b test) int { return cmp.Compare(s.seconds[b], s.seconds[a]) })
	if len(pkgs) == 0 {
		return
	}
	s.printf("\nslowest:")
	for _, t := range pkgs[:min(len(pkgs), 5)] {
		s.printf(" %s %.0fs", short(t.pkg), s.seconds[t])
	}
	s.printf("\n")
}

func (s *summary) printf(format string, args ...any) { _, _ = fmt.Fprintf(s.out, format, args...) }

func short(pkg string) string { return strings.TrimPrefix(pkg, "github.com/sandfarm/") }

// reason is the last line that a skipped test printed, without its position.
func reason(b *strings.Builder) string {
	if b == nil {
		return ""
	}
	for line := range strings.Lines(b.String()) {
		if _, text, ok := strings.Cut(line, ".go:"); ok {
			if _, why, found := strings.Cut(text, ": "); found {
				return "(" + strings.TrimSpace(why) + ")"
			}
		}
	}
	return ""
}

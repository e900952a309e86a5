package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// event is one line of "go test -json" (see "go doc test2json").
type event struct {
	Action  string
	Package string
	Test    string
	Elapsed float64 // seconds
	Output  string
}

// test is one test, or a whole package if its name is empty.
type test struct{ pkg, name string }

func (t test) String() string { return strings.TrimSpace(t.pkg + " " + t.name) }

// parent is the test of which this is a subtest, or the package.
func (t test) parent() test {
	return test{t.pkg, t.name[:max(0, strings.LastIndex(t.name, "/"))]}
}

// maxOutput is how much output of one test is kept: its beginning, which says most.
const maxOutput = 256 << 10

// mayNeverBeFlaky are tests whose failure is never forgiven, since they count what is lost, doubled or misreported, or attack.
var mayNeverBeFlaky = regexp.MustCompile(`/internal/(store|faulttest|abusetest)(/\S*)? |/internal/dispatch TestModel|TestAttack`)

// results are what the tests of one run came to. Tests that were run again count once, by their last run.
type results struct {
	passed, failed, skipped, flaky []test // failed and flaky without the tests that failed with a subtest
	output                         map[test]string
	seconds                        map[test]time.Duration
}

// readEvents reads the output of go test, of one run or of several after each other.
func readEvents(in io.Reader) (*results, error) {
	last, outputs, everFailed := map[test]string{}, map[test]*strings.Builder{}, map[test]bool{}
	r := &results{output: map[test]string{}, seconds: map[test]time.Duration{}}
	lines := bufio.NewReaderSize(in, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		var e event
		if json.Unmarshal(line, &e) == nil && e.Package != "" {
			t := test{e.Package, e.Test}
			switch e.Action {
			case "run":
				last[t] = "fail" // until it ends: the tests of a program that was killed have failed
			case "output":
				b := outputs[t]
				if b == nil {
					b = &strings.Builder{}
					outputs[t] = b
				}
				if b.Len() < maxOutput {
					b.WriteString(e.Output)
				}
			case "pass", "fail", "skip":
				last[t] = e.Action
				everFailed[t] = everFailed[t] || e.Action == "fail"
				r.seconds[t] = time.Duration(e.Elapsed * float64(time.Second))
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read the test events: %w", err)
		}
	}
	r.sort(last, everFailed)
	for _, t := range slices.Concat(r.failed, r.flaky) {
		if b := outputs[t]; b != nil {
			r.output[t] = b.String()
		}
	}
	return r, nil
}

func (r *results) sort(last map[test]string, everFailed map[test]bool) {
	causes := map[test]bool{} // tests with a subtest that failed, and packages with a test that failed
	for t := range last {
		if everFailed[t] || last[t] == "fail" {
			for t.name != "" {
				t = t.parent()
				causes[t] = true
			}
		}
	}
	for _, t := range slices.SortedFunc(maps.Keys(last), func(a, b test) int { return cmp.Or(cmp.Compare(a.pkg, b.pkg), cmp.Compare(a.name, b.name)) }) {
		switch {
		case last[t] == "fail":
			if !causes[t] {
				r.failed = append(r.failed, t)
			}
		case t.name == "": // a package counts if it fails without a test that does
		case last[t] == "skip":
			r.skipped = append(r.skipped, t)
		default:
			r.passed = append(r.passed, t)
			if everFailed[t] && !causes[t] {
				r.flaky = append(r.flaky, t)
			}
		}
	}
}

// reasons says why the run is red; none if it is green.
func (r *results) reasons(skips bool) (all []string) {
	for _, t := range r.failed {
		all = append(all, t.String()+" failed")
	}
	for _, t := range r.flaky {
		if mayNeverBeFlaky.MatchString(t.String()) {
			all = append(all, t.String()+" failed; that it passed when it ran again does not count")
		} else if strings.Contains(r.output[t], "WARNING: DATA RACE") {
			all = append(all, t.String()+" has a data race")
		}
	}
	if len(r.flaky) > maxFlaky {
		all = append(all, fmt.Sprintf("%d tests are flaky, more than %d", len(r.flaky), maxFlaky))
	}
	if !skips {
		for _, t := range r.skipped {
			all = append(all, t.String()+" was skipped")
		}
	}
	if len(r.passed)+len(r.failed) == 0 {
		all = append(all, "nothing was tested")
	}
	return all
}

// slowest gives the slowest tests, without subtests, the slowest first.
func (r *results) slowest() []test {
	var all []test
	for t := range r.seconds {
		if t.name != "" && !strings.Contains(t.name, "/") {
			all = append(all, t)
		}
	}
	slices.SortFunc(all, func(a, b test) int {
		return cmp.Or(cmp.Compare(r.seconds[b], r.seconds[a]), cmp.Compare(a.String(), b.String()))
	})
	return all[:min(len(all), shownSlowest)]
}

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/testbed"
)

// events are lines of "go test -json": an action, a package, a test and seconds in each, or output behind a colon.
func events(lines ...string) string {
	var b strings.Builder
	for _, line := range lines {
		head, output, _ := strings.Cut(line, ": ")
		f := append(strings.Fields(head), "", "", "")
		fmt.Fprintf(&b, `{"Action":%q,"Package":"x/%s","Test":%q,"Elapsed":1.5,"Output":%q}`+"\n", f[0], f[1], f[2], output)
	}
	return b.String()
}

func TestVerdictOfARun(t *testing.T) {
	t.Parallel()
	flaky := func(pkg, name string) []string {
		return []string{"run " + pkg + " " + name, "output " + pkg + " " + name + ": it broke", "fail " + pkg + " " + name, "fail " + pkg, "run " + pkg + " " + name, "pass " + pkg + " " + name, "pass " + pkg}
	}
	for name, c := range map[string]struct {
		events                 []string
		skips                  bool
		passed, failed, flaked []string
		red                    string // part of the reason; empty: green
	}{
		"Green":          {events: []string{"run a TestOne", "pass a TestOne", "pass a"}, passed: []string{"x/a TestOne"}},
		"Nothing":        {events: []string{"pass a"}, red: "nothing was tested"},
		"Failed":         {events: []string{"run a TestOne", "fail a TestOne", "fail a"}, failed: []string{"x/a TestOne"}, red: "x/a TestOne failed"},
		"Subtest":        {events: []string{"run a TestOne", "run a TestOne/Sub", "fail a TestOne/Sub", "fail a TestOne", "fail a"}, failed: []string{"x/a TestOne/Sub"}, red: "x/a TestOne/Sub failed"},
		"Build":          {events: []string{"fail a"}, failed: []string{"x/a"}, red: "x/a failed"},
		"Killed":         {events: []string{"run a TestOne", "fail a"}, failed: []string{"x/a TestOne"}, red: "x/a TestOne failed"},
		"Skipped":        {events: []string{"run a TestOne", "skip a TestOne", "run a TestTwo", "pass a TestTwo", "pass a"}, passed: []string{"x/a TestTwo"}, red: "x/a TestOne was skipped"},
		"SkipAllowed":    {events: []string{"run a TestOne", "skip a TestOne", "run a TestTwo", "pass a TestTwo", "pass a"}, skips: true, passed: []string{"x/a TestTwo"}},
		"Flaky":          {events: flaky("a", "TestOne"), passed: []string{"x/a TestOne"}, flaked: []string{"x/a TestOne"}},
		"FailedTwice":    {events: slices.Concat(flaky("a", "TestOne")[:4], flaky("a", "TestOne")[:4]), failed: []string{"x/a TestOne"}, red: "x/a TestOne failed"},
		"FlakyRace":      {events: append([]string{"output a TestOne: WARNING: DATA RACE"}, flaky("a", "TestOne")...), passed: []string{"x/a TestOne"}, flaked: []string{"x/a TestOne"}, red: "data race"},
		"FlakyStore":     {events: flaky("internal/store", "TestOne"), passed: []string{"x/internal/store TestOne"}, flaked: []string{"x/internal/store TestOne"}, red: "does not count"},
		"FlakyFaults":    {events: flaky("internal/faulttest", "TestOne"), passed: []string{"x/internal/faulttest TestOne"}, flaked: []string{"x/internal/faulttest TestOne"}, red: "does not count"},
		"FlakyAttack":    {events: flaky("cmd", "TestAttackFiles"), passed: []string{"x/cmd TestAttackFiles"}, flaked: []string{"x/cmd TestAttackFiles"}, red: "does not count"},
		"FlakyStoreUser": {events: flaky("internal/storeroom", "TestOne"), passed: []string{"x/internal/storeroom TestOne"}, flaked: []string{"x/internal/storeroom TestOne"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, err := readEvents(strings.NewReader(events(c.events...)))
			testbed.Must(t, err)
			for what, pair := range map[string][2]any{"passed": {c.passed, r.passed}, "failed": {c.failed, r.failed}, "flaky": {c.flaked, r.flaky}} {
				if fmt.Sprint(pair[0]) != fmt.Sprint(pair[1]) {
					t.Errorf("%s: %v, want %v", what, pair[1], pair[0])
				}
			}
			reasons := strings.Join(r.reasons(c.skips), "; ")
			if (c.red == "") != (reasons == "") || !strings.Contains(reasons, c.red) {
				t.Errorf("reasons %q, want %q", reasons, c.red)
			}
			for _, test := range r.flaky {
				if !strings.Contains(r.output[test], "it broke") {
					t.Errorf("the output of %s is %q", test, r.output[test])
				}
			}
		})
	}
}

func TestMoreFlakyTestsThanAllowedAreRed(t *testing.T) {
	t.Parallel()
	for n, red := range map[int]bool{maxFlaky - 1: false, maxFlaky: false, maxFlaky + 1: true} {
		var lines []string
		for i := range n {
			lines = append(lines, fmt.Sprintf("fail a Test%d", i), fmt.Sprintf("pass a Test%d", i))
		}
		r, err := readEvents(strings.NewReader(events(lines...)))
		testbed.Must(t, err)
		if got := len(r.reasons(false)) > 0; got != red || len(r.flaky) != n {
			t.Errorf("%d flaky tests (%d seen): red %v", n, len(r.flaky), got)
		}
	}
}

func TestListOfFlakyTests(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 15, 0, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct{ text, want string }{
		"Empty":     {"# a comment\n\n", ""},
		"Young":     {"TestA\t2026-11-02\ta port was taken\n", ""},
		"AtLimit":   {"TestA\t2026-11-01\ta port was taken\n", ""},
		"Old":       {"TestA\t2026-10-31\ta port was taken\n", "TestA has been flaky for 15 days"},
		"NoReason":  {"TestA\t2026-11-02\n", ":1: write the test's name"},
		"WrongDate": {"TestA\tyesterday\twhy\n", "is no date"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "flaky.txt")
			testbed.Must(t, os.WriteFile(path, []byte(c.text), 0o600))
			err := checkFlakyList(path, now)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func TestPageKeepsOneRowForEachPart(t *testing.T) {
	t.Parallel()
	faults := step{name: "test-faults", verdict: "ok", took: time.Minute, counts: counts{Passed: 4}}
	page := withRow(pageHead, faults, "2026-11-01", "abc", "2 cores")
	page = withRow(page, step{name: "dist", verdict: "ok", took: time.Second}, "2026-11-01", "abc", "2 cores")
	page += "\nText below.\n"
	faults.verdict, faults.Failed, faults.Notes = "RED", 1, []string{"TestA|B failed"}
	page = withRow(page, faults, "2026-11-02", "def", "2 cores")
	want := "| dist | ok |  |  |  | 0 | 1 | 2026-11-01 | abc | 2 cores |  |\n| faults | RED | 4 | 1 | 0 | 0 | 60 | 2026-11-02 | def | 2 cores | TestA\\|B failed |\n\nText below.\n"
	if !strings.HasSuffix(page, want) || strings.Count(page, "| faults |") != 1 {
		t.Errorf("page:\n%s\nwant it to end with:\n%s", page, want)
	}
}

// Targets are made in a folder with a Makefile of the test's own.
func TestSteps(t *testing.T) {
	t.Setenv(resultsEnv, "")
	t.Chdir(t.TempDir())
	makefile := "good:\n\t@echo '{\"Passed\":2}' >>$$SANDFARM_TEST_RESULTS; echo '{\"Passed\":3,\"Flaky\":1}' >>$$SANDFARM_TEST_RESULTS\nbad:\n\t@exit 3\nhangs:\n\t@sleep 600\n"
	testbed.Must(t, os.WriteFile("Makefile", []byte(makefile), 0o600))
	for name, c := range map[string]struct {
		stepper
		targets []string
		code    int
		says    []string
	}{
		"Green":       {targets: []string{"good", "good"}, says: []string{"### good: ok after", "10 passed, 0 failed, 0 skipped"}},
		"StopsAtRed":  {targets: []string{"good", "bad", "good"}, code: 1, says: []string{"### bad: RED", "1 steps after bad did not run", "5 passed"}},
		"PastItsTime": {stepper: stepper{limit: 300 * time.Millisecond}, targets: []string{"hangs", "good"}, code: 1, says: []string{"### hangs: RED", "ran past its limit"}},
		"GoesOn":      {stepper: stepper{page: "page.md"}, targets: []string{"bad", "good"}, code: 1, says: []string{"### good: ok"}},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			c.out = &out
			code, err := c.run(t.Context(), c.targets)
			if err != nil || code != c.code {
				t.Errorf("code %d, %v, want %d", code, err, c.code)
			}
			for _, want := range c.says {
				if !strings.Contains(out.String(), want) {
					t.Errorf("it does not say %q:\n%s", want, out.String())
				}
			}
		})
	}
	if page, err := os.ReadFile("page.md"); err != nil || !strings.Contains(string(page), "| bad | RED |") || !strings.Contains(string(page), "| good | ok | 5 |") {
		t.Errorf("page: %v\n%s", err, page)
	}
}

// The end of the fuzzing time is no finding, and everything else that go test fails for is one.
func TestOnlyTheEndOfTheTimeIsRepeated(t *testing.T) {
	t.Parallel()
	const timeout, input = "    context deadline exceeded\n", "    Failing input written to testdata/fuzz/F/1\n"
	for name, c := range map[string]struct {
		fails int    // runs that fail, of those that are made
		says  string // what a run that fails prints
		runs  int
		ok    bool
		shows bool // what a run that fails prints is shown
	}{
		"Passes":        {0, "", 1, true, false},
		"EndOfTime":     {2, timeout, 3, true, false},
		"AlwaysEnds":    {9, timeout, 3, false, true},
		"FailingInput":  {1, input, 1, false, true},
		"InputAtTheEnd": {1, timeout + input, 1, false, true},
		"DoesNotBuild":  {1, "FAIL p [build failed]\n", 1, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			program := `#!/bin/sh
echo "$*" >>"$CALLS"
[ "$(wc -l <"$CALLS")" -gt "$FAILS" ] && exit 0
printf '%s' "$SAYS"
exit 1
`
			calls := filepath.Join(dir, "calls")
			if err := os.WriteFile(filepath.Join(dir, "go"), []byte(program), 0o700); err != nil { //nolint:gosec // it is run
				t.Fatal(err)
			}
			script := exec.Command("./fuzz.sh", "p", "F", "3s", "-v")
			script.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "CALLS="+calls, "SAYS="+c.says, "FAILS="+strconv.Itoa(c.fails))
			out, err := script.CombinedOutput()
			if (err == nil) != c.ok {
				t.Errorf("%v: %s", err, out)
			}
			if shows := c.says != "" && strings.Contains(string(out), c.says); shows != c.shows {
				t.Errorf("it shows %q, want its output: %v", out, c.shows)
			}
			text, err := os.ReadFile(calls)
			testbed.Must(t, err)
			testbed.Diff(t, "calls of go", strings.Repeat("test -run ^$ -fuzz ^F$ -fuzztime 3s -v p\n", c.runs), string(text))
		})
	}
}

func TestLinesOfCode(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		text      string
		want      int
		generated bool
	}{
		"Code":      {text: "package a\n\nfunc f() {\n\tg() // why\n}\n", want: 4},
		"Comments":  {text: "// Package a.\npackage a\n\n/* one\ntwo */\nvar x = 1\n", want: 2},
		"RawString": {text: "package a\n\nvar x = `one\n\nthree` + `four\nfive`\n", want: 5},
		"Statement": {text: "package a; var x = 1; var y = 2\nvar z = 3", want: 2},
		"Generated": {text: "// Code generated by x. DO NOT EDIT.\n\npackage a\n", generated: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if n, generated, err := lines([]byte(c.text)); n != c.want || generated != c.generated || err != nil {
				t.Errorf("%d lines, generated %t, %v; want %d, %t", n, generated, err, c.want, c.generated)
			}
		})
	}
}

func TestRoomOfAFile(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]struct {
		room string
		test bool
	}{
		"api/server.go":                          {"api", false},
		"api/rest/route.go":                      {"api/rest", false},
		"cmd/sandfarm/internal/verbs/job.go":     {"cmd/sandfarm", false},
		"internal/store/jobs/job.go":             {"internal/store", false},
		"internal/store/storetest/job.go":        {"internal/store", true},
		"internal/testbed/poll.go":               {"internal/testbed", true},
		"internal/engine/testdata/probe/main.go": {"internal/engine", true},
		"scheduler/sweep_test.go":                {"scheduler", true},
		"bench/plan.go":                          {"bench", true},
	} {
		if room(file) != want.room || isTest(file) != want.test {
			t.Errorf("%s is in %s, test %t; want %s, %t", file, room(file), isTest(file), want.room, want.test)
		}
	}
}

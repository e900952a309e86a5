package fuzz_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

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
			if err != nil {
				t.Fatal(err)
			}
			if want := strings.Repeat("test -run ^$ -fuzz ^F$ -fuzztime 3s -v p\n", c.runs); string(text) != want {
				t.Errorf("go was called with\n%swant\n%s", text, want)
			}
		})
	}
}

package store

import (
	"strings"
	"testing"
)

// A script gets the paragraphs that it uses, and those that they use, in their order, but none that only comments name.
func TestPreludeGivesWhatAScriptUses(t *testing.T) {
	t.Parallel()
	p := newPrelude("local A, B = 1, 2\n", "-- Uses A.\nlocal function first() return A end\n\nlocal function second()\n  return first() -- not third\nend\n",
		"local function third() return 3 end\n")
	for script, want := range map[string]string{
		"return second()":             "A, B first second",
		"return B":                    "A, B",
		"return first() + third()":    "A, B first third",
		"return 1 -- second() helps":  "",
		"return seconds + thirdparty": "",
	} {
		got := p.of(script)
		var defined []string
		for line := range strings.Lines(got) {
			if name, ok := strings.CutPrefix(line, "local function "); ok {
				defined = append(defined, name[:strings.Index(name, "(")])
			} else if name, ok := strings.CutPrefix(line, "local "); ok {
				defined = append(defined, name[:strings.Index(name, " =")])
			}
		}
		if strings.Join(defined, " ") != want {
			t.Errorf("%q gets %q, want %q:\n%s", script, defined, want, got)
		}
	}
}

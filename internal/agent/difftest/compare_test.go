package difftest_test

import (
	"path/filepath"
	"strings"
	"testing"
)

// A difference fails the test unless it is listed, and so does a listed one that is gone.
func TestDifferencesAreListed(t *testing.T) {
	t.Parallel()
	at := func(count int, stdout string) []cell {
		return []cell{{Status: "ok", Count: count, Parts: []part{{Stdout: stdout}}}}
	}
	for name, c := range map[string]struct {
		ours, theirs []cell
		listed       []string
		want         []string // beginnings
	}{
		"Equal":         {at(1, "a"), at(1, "a"), nil, nil},
		"Unlisted":      {at(1, "a"), at(1, "b"), nil, []string{"stdout differs"}},
		"Listed":        {at(1, "a"), at(1, "b"), []string{"stdout"}, nil},
		"OneUnlisted":   {at(1, "a"), at(2, "b"), []string{"stdout"}, []string{"count differs"}},
		"Gone":          {at(1, "a"), at(1, "a"), []string{"stdout"}, []string{"stdout does not differ"}},
		"OneCellIsLess": {at(1, "a"), append(at(1, "a"), cell{Status: "ok"}), []string{"count"}, []string{"status differs"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := verdicts(c.listed, compare(c.ours, c.theirs))
			for i, want := range c.want {
				if i >= len(got) || !strings.HasPrefix(got[i], want) {
					t.Fatalf("got %q, want %q", got, c.want)
				}
			}
			if c.want == nil && len(got) > 0 {
				t.Fatalf("got %q", got)
			}
		})
	}
}

// The same output in another order is a difference of its own.
func TestOrderIsCompared(t *testing.T) {
	t.Parallel()
	value := &shown{Number: 1, Data: map[string]string{"text/plain": "1"}}
	ours := []cell{{Parts: []part{{Stdout: "ab", Shown: value}, {}}}}
	theirs := []cell{{Parts: []part{{Stdout: "a", Shown: value}, {Stdout: "b"}}}}
	found := compare(ours, theirs)
	if len(found) != 1 || found[0].aspect != "order" {
		t.Fatalf("found %+v", found)
	}
}

// What differs from run to run is equal after the normalisation; what code prints is not changed.
func TestNormalisation(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"<C object at 0x7f06c8c79a30>":                     "<C object at ADDRESS>",
		"\x1b[31mred\x1b[0m":                               "red",
		"/tmp/x/workspace/a.py":                            "DIR/workspace/a.py",
		"/tmp/x/tmp/ipykernel_12/345.py:1: Warning":        "CELL.py:1: Warning",
		"CPU times: user 12 μs, sys: 1e+03 ns, total: 3 s": "CPU times: user TIME, sys: TIME, total: TIME",
		"1.5 ms ± 2 ns per loop (n, 100 loops each)":       "TIME ± TIME per loop (n, N loops each)",
		"Decimal('1.5') 0xff 42":                           "Decimal('1.5') 0xff 42",
	} {
		if got := normal(text, "/tmp/x"); got != want {
			t.Errorf("normal(%q) = %q, want %q", text, got, want)
		}
	}
}

// Every file of testdata can be read, and no program is there twice or listed twice.
func TestProgramsAreReadable(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob(filepath.Join("testdata", "*.ipy"))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, path := range paths {
		for _, p := range readPrograms(t, path) {
			found[p.Name] = true
		}
	}
	listed, err := differences(13)
	if err != nil {
		t.Fatal(err)
	}
	for name := range listed {
		if !found[name] {
			t.Errorf("differences_test.go lists %s, which is no program", name)
		}
	}
	if least := 120; len(found) < least {
		t.Errorf("there are %d programs, at least %d are wanted", len(found), least)
	}
}

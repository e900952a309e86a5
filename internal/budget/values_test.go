package budget_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/budget"
)

func TestValues(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		``: 1, `1`: 1, `"a,[{"`: 1, `"\",\\"`: 1, `"\\",1`: 2, `[1,2]`: 3, `{"a":1,"b":[{}]}`: 5, `[[[[`: 5, `"open,,,`: 1, `"\`: 1,
		strings.Repeat(`{},`, 1000): 2001,
	} {
		if got := budget.Values([]byte(text)); got != want {
			t.Errorf("%.40s has %d values, want %d", text, got, want)
		}
	}
}

// Values never undercounts.
func FuzzValues(f *testing.F) {
	for _, seed := range []string{`[1,"a",{"b":[]}]`, `{"a":"\u0022,","b":[[],[{}]]}`, `"\\"`, `[null,true , false]`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var v any
		if json.Unmarshal(text, &v) != nil {
			return
		}
		if got, there := budget.Values(text), count(v); got < there {
			t.Errorf("%q: %d values, and there are %d", text, got, there)
		}
	})
}

func count(v any) int {
	n := 1
	switch v := v.(type) {
	case []any:
		for _, each := range v {
			n += count(each)
		}
	case map[string]any:
		for _, each := range v {
			n += count(each)
		}
	}
	return n
}

package budget_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
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

func TestBodiesOfTooManyValuesAreRefused(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]farm.Code{farm.MaxBodyValues - 1: "", farm.MaxBodyValues: "", farm.MaxBodyValues + 1: farm.CodeTooLarge} {
		text := "[1" + strings.Repeat(",1", n-2) + "]" // the array counts as its first value
		_, err := budget.ChargeValues(t.Context(), []byte(text))
		if want == "" && err != nil || want != "" && (farm.CodeOf(err) != want || !strings.Contains(err.Error(), "250000")) {
			t.Errorf("%d values: %v", n, err)
		}
	}
}

// Few values of many bytes cost nothing beside their bytes, and many values of few bytes 64 bytes each.
func TestValuesAreCharged(t *testing.T) {
	t.Parallel()
	b := budget.New(size)
	ctx, hold := b.With(t.Context(), "a", 0)
	defer hold.Release()
	if more, err := budget.ChargeValues(ctx, []byte(`{"code":"`+strings.Repeat("x", 100)+`"}`)); more != 0 || err != nil || hold.Bytes() != 0 {
		t.Errorf("code is charged with %d bytes, %v", more, err)
	}
	text := "[" + strings.Repeat("1,", 999) + "1]" // 1001 values in 2001 bytes, of which BodyWeight holds three more
	if more, err := budget.ChargeValues(ctx, []byte(text)); more != 1001*64-2001*3 || err != nil || hold.Bytes() != more {
		t.Errorf("a list is charged with %d bytes, %v, and %d are held", more, err, hold.Bytes())
	}
}

package budget_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
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

// A text of control characters, or not in UTF-8, takes six times its bytes as a JSON string.
func TestQuotingChargesEscapes(t *testing.T) {
	t.Parallel()
	for _, one := range []string{"a", "ü\U0001f600", "\x01", "\b", "\n", `"`, `\`, "<", "&", "\xff", "\xe2\x80", "\u2028", "\ufffd", "\x7f"} {
		const count, copies = 1000, 2
		text := strings.Repeat(one, count)
		ctx, hold := budget.New(0).With(t.Context(), "acme", 0)
		testbed.Must(t, budget.Quoting(ctx, []byte(text), copies))
		escaped, err := json.Marshal(text)
		testbed.Must(t, err)
		if more := int64(2 * copies * (len(escaped) - len(`""`) - len(text))); hold.Bytes() < more || hold.Bytes() > more+6*count*copies || len(one) == 1 && one < " " && more == 0 {
			t.Errorf("%q: %d bytes are charged, and it takes %d more", one, hold.Bytes(), more)
		}
		hold.Release()
	}
}

// Charge takes of what exceeds a tenant's share the part that fits; escapes beyond it are refused.
func TestQuotingIsRefusedBeyondTheShare(t *testing.T) {
	t.Parallel()
	const size = 1 << 20 // of text, which takes 10 MiB more
	for held, want := range map[int64]farm.Code{0: "", 1 << 20: "", 12 << 20: "", 20 << 20: farm.CodeExhausted, 64 << 20: farm.CodeExhausted} {
		ctx, hold := budget.New(64<<20).With(t.Context(), "acme", 0)
		testbed.Must(t, budget.Charge(ctx, held))
		before := hold.Bytes()
		err := budget.Quoting(ctx, bytes.Repeat([]byte{1}, size), 1)
		testbed.Diff(t, fmt.Sprintf("with %d bytes held", held), want, farm.CodeOf(err))
		testbed.Check(t, (err == nil) == (hold.Bytes() > before), "%d bytes are held, %d before: %v", hold.Bytes(), before, err)
		hold.Release()
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
		_, err := budget.Decoding(t.Context(), len(text), func() int { return budget.Values([]byte(text)) })
		if want == "" && err != nil || want != "" && (farm.CodeOf(err) != want || !strings.Contains(err.Error(), "250000")) {
			t.Errorf("%d values: %v", n, err)
		}
	}
}

// Few values of many bytes cost nothing beside their bytes, and many values of few bytes 64 bytes each.
func TestValuesAreCharged(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{
		`{"code":"` + strings.Repeat("x", 100) + `"}`: 0,
		"[" + strings.Repeat("1,", 999) + "1]":        1001*64 - 2001*3, // 1001 values in 2001 bytes, of which BodyWeight holds three more
	} {
		ctx, hold := budget.New(size).With(t.Context(), "a", 0)
		weight, err := budget.Decoding(ctx, len(text), func() int { return budget.Values([]byte(text)) })
		if values := budget.Values([]byte(text)); err != nil || hold.Bytes() != want || weight != len(text)+64*values {
			t.Errorf("%.10s… is charged with %d bytes, want %d, and counts as %d for a core: %v", text, hold.Bytes(), want, weight, err)
		}
		hold.Release()
	}
}

// The values of a large body are counted on a core, those of a short one before: its charge may wait.
func TestValuesOfLargeBodiesAreCountedOnACore(t *testing.T) {
	t.Parallel()
	ctx := testbed.WithoutCore(t, budget.New(size), "a")
	for bytes, want := range map[int]bool{budget.SmallBytes: true, budget.SmallBytes + 1: false} {
		counted := false
		_, err := budget.Decoding(ctx, bytes, func() int { counted = true; return 1 })
		if counted != want || !errors.Is(err, context.Canceled) {
			t.Errorf("%d bytes, without a core: counted %v, %v", bytes, counted, err)
		}
	}
	b := budget.New(size)
	for range 2 * runtime.GOMAXPROCS(0) { // each gives its core back
		if _, err := budget.Decoding(testbed.Abandoned(t, b, "a"), budget.SmallBytes+1, func() int { return farm.MaxBodyValues + 1 }); farm.CodeOf(err) != farm.CodeTooLarge {
			t.Errorf("too many values: %v", err)
		}
	}
}

package client

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// What an agent answers is charged, unless it is short, and given back with the request; an answer beyond its limit is refused.
func TestAnswersAreCharged(t *testing.T) {
	t.Parallel()
	b := budget.New(64 << 20)
	for _, c := range []struct {
		size, limit int64
		code        farm.Code
		held        int64 // afterwards
	}{
		{10, 100, "", 0},
		{budget.SmallBytes - 1, 1 << 20, "", 0},
		{budget.SmallBytes + 1, 1 << 20, "", (budget.SmallBytes + 1) * budget.BodyWeight},
		{1 << 20, 4 << 20, "", 1 << 20 * budget.BodyWeight},
		{99, 100, "", 0},
		{100, 100, "", 0},
		{101, 100, farm.CodeTooLarge, 0},
	} {
		ctx, hold := b.With(t.Context(), "acme", 0)
		raw, err := read(ctx, bytes.NewReader(make([]byte, c.size)), c.limit)
		if farm.CodeOf(err) != c.code || c.code == "" && int64(len(raw)) != c.size {
			t.Errorf("%d of %d bytes: %d, %v", c.size, c.limit, len(raw), err)
		}
		held := hold.Bytes()
		testbed.Check(t, held == c.held, "%d of %d bytes: %d are held, want %d", c.size, c.limit, held, c.held)
		hold.Release()
	}
	_, err := read(t.Context(), io.MultiReader(bytes.NewReader([]byte("{")), broken{}), 10)
	testbed.Check(t, farm.CodeOf(err) == farm.CodeUnavailable, "a broken connection: %v", err)
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("reset") }

func TestEndOfProcessHasTheSentenceAboutItsLimit(t *testing.T) {
	t.Parallel()
	for payload, want := range map[string]string{
		`{"exit_code":137,"out_of_memory":true,"error":{"name":"OutOfMemory","value":"limit of 64 MiB."}}`: "limit of 64 MiB.",
		`{"exit_code":137,"out_of_memory":true}`:                                                           "",
		`{"exit_code":1}`:                                                                                  "",
	} {
		end, err := endOf([]byte(payload))
		testbed.Check(t, err == nil && end.Reason == want, "%s: %+v, %v", payload, end, err)
	}
}

// An end of a MiB could have a value in each two bytes, which take dozens each when they are decoded.
func TestEndOfProcessHasFewValues(t *testing.T) {
	t.Parallel()
	for values, code := range map[int]farm.Code{fewValues - 1: "", fewValues: "", fewValues + 1: farm.CodeInternal} {
		payload := []byte(`{"notes":["x"` + strings.Repeat(`,"x"`, values-3) + `]}`)
		testbed.Require(t, budget.Values(payload) == values, "%d values, want %d", budget.Values(payload), values)
		_, err := endOf(payload)
		testbed.Check(t, farm.CodeOf(err) == code, "%d values: %v", values, err)
	}
}

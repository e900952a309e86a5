package client

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// What an agent answers is charged before it is read, and given back with the request; an answer beyond its limit is refused.
func TestAnswersAreCharged(t *testing.T) {
	t.Parallel()
	b := budget.New(64 << 20)
	for _, c := range []struct {
		size, limit int
		code        farm.Code
		least, most int64 // held afterwards
	}{
		{10, 100, "", 0, 0},
		{freeBytes - 1, 1 << 20, "", 0, 0},
		{freeBytes + 1, 1 << 20, "", freeBytes * budget.BodyWeight, freeBytes * budget.BodyWeight},
		{1 << 20, 4 << 20, "", 1 << 20 * budget.BodyWeight * 7 / 8, 2 << 20 * budget.BodyWeight},
		{99, 100, "", 0, 0},
		{100, 100, "", 0, 4},
		{101, 100, farm.CodeTooLarge, 0, 4},
	} {
		ctx, hold := b.With(t.Context(), "acme", 0)
		raw, err := read(ctx, bytes.NewReader(make([]byte, c.size)), c.limit)
		if farm.CodeOf(err) != c.code || c.code == "" && len(raw) != c.size {
			t.Errorf("%d of %d bytes: %d, %v", c.size, c.limit, len(raw), err)
		}
		if held := hold.Bytes(); held < c.least || held > c.most {
			t.Errorf("%d of %d bytes: %d are held, want %d to %d", c.size, c.limit, held, c.least, c.most)
		}
		hold.Release()
	}
	if _, err := read(t.Context(), io.MultiReader(bytes.NewReader([]byte("{")), broken{}), 10); farm.CodeOf(err) != farm.CodeUnavailable {
		t.Errorf("a broken connection: %v", err)
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("reset") }

package budget_test

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// pieces is a body of which each read returns one piece, and notes what is charged when it waits for it.
type pieces struct {
	sizes []int
	held  func() int64
	noted []int64
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.sizes) == 0 {
		return 0, io.EOF
	}
	if len(p.noted) == 0 || p.noted[len(p.noted)-1] != p.held() {
		p.noted = append(p.noted, p.held())
	}
	n := min(len(b), p.sizes[0])
	if p.sizes[0] -= n; p.sizes[0] == 0 {
		p.sizes = p.sizes[1:]
	}
	return n, nil
}

// Some requests that had sent 20 KB of a body held the whole budget: each was charged at once for the longest body, or for the length that it announced.
func TestABodyIsChargedAsItArrives(t *testing.T) {
	t.Parallel()
	const limit = 16 << 20
	for name, c := range map[string]struct {
		sizes  []int
		length int64
		held   []int64 // while more is awaited
	}{
		"Short":          {[]int{10_000, 1}, -1, []int64{0}},
		"Slow":           {[]int{20_000, 1}, -1, []int64{0, 256 << 10}},
		"Longer":         {[]int{300 << 10, 1}, -1, []int64{0, 256 << 10, 512 << 10, 1 << 20, 2 << 20}},
		"Announced":      {[]int{20_000, 1}, limit, []int64{0, 256 << 10}},
		"AnnouncedShort": {[]int{20_000, 1}, 20_001, []int64{0, 20_001 * budget.BodyWeight}},
		"AnnouncedLong":  {[]int{300 << 10, 1}, 300<<10 + 1, []int64{0, 256 << 10, 512 << 10, 1 << 20, (300<<10 + 1) * budget.BodyWeight}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, hold := budget.New(256<<20).With(t.Context(), "a", 0)
			defer hold.Release()
			total := int64(0)
			for _, n := range c.sizes {
				total += int64(n)
			}
			body := &pieces{sizes: c.sizes, held: hold.Bytes}
			text, err := budget.ReadAll(ctx, body, c.length, limit)
			if err != nil || int64(len(text)) != total {
				t.Fatalf("ReadAll = %d bytes, %v", len(text), err)
			}
			if diff := cmp.Diff(c.held, body.noted); diff != "" {
				t.Errorf("bytes that are charged while it arrives (-want +got):\n%s", diff)
			}
			if hold.Bytes() != total*budget.BodyWeight {
				t.Errorf("%d bytes stay charged for %d", hold.Bytes(), total)
			}
		})
	}
}

// What comes in small pieces is charged before it is kept, in steps that leave alone what is kept for small requests.
func TestPiecesAreChargedAsTheyCome(t *testing.T) {
	t.Parallel()
	const step = 512 << 10
	for _, c := range []struct{ pieces, size, held int64 }{
		{64, 1 << 10, 0},
		{65, 1 << 10, step},
		{512, 1 << 10, step},
		{513, 1 << 10, 2 * step},
		{1, 2 << 20, 2 << 20},
		{2, 2 << 20, 4 << 20},
	} {
		ctx, hold := budget.New(256<<20).With(t.Context(), "a", 0)
		var g budget.Gathered
		for range c.pieces {
			if err := g.Add(ctx, c.size); err != nil {
				t.Fatal(err)
			}
		}
		if hold.Bytes() != c.held {
			t.Errorf("%d pieces of %d bytes: %d are charged, want %d", c.pieces, c.size, hold.Bytes(), c.held)
		}
		hold.Release()
	}
	b := budget.New(size)
	ctx, hold := b.With(t.Context(), "a", 0)
	defer hold.Release()
	var g budget.Gathered
	if err := g.Add(ctx, mib); err != nil {
		t.Fatal(err)
	}
	other, _ := b.TryAcquire("a", share-mib)
	defer other.Release()
	if err := g.Add(ctx, mib); farm.CodeOf(err) != farm.CodeExhausted {
		t.Errorf("what is not there: %v", err)
	}
}

// What is gathered has a limit, up to which it is charged but for what is small.
func TestPiecesAreBounded(t *testing.T) {
	t.Parallel()
	const limit = 2 << 20
	for extra, want := range map[int64]error{-1: nil, 0: nil, 1: budget.ErrTooLong} {
		ctx, hold := budget.New(16<<20).With(t.Context(), "acme", 0)
		g := budget.Gathered{Limit: limit}
		if err := errors.Join(g.Add(ctx, budget.SmallBytes), g.Add(ctx, limit-budget.SmallBytes-1)); err != nil || hold.Bytes() < limit-1 {
			t.Errorf("below the limit: %v, %d bytes are charged", err, hold.Bytes())
		}
		if err := g.Add(ctx, 1+extra); !errors.Is(err, want) {
			t.Errorf("%d bytes beyond the limit: %v", extra, err)
		}
	}
	full := budget.New(16 << 20)
	for _, other := range []string{"blue", "red"} {
		if _, ok := full.TryAcquire(other, full.Share()); !ok {
			t.Fatal("the budget is not what it should be")
		}
	}
	ctx, _ := full.With(t.Context(), "acme", time.Nanosecond)
	if g := (budget.Gathered{Limit: limit}); g.Add(ctx, budget.SmallBytes) != nil || farm.CodeOf(g.Add(ctx, 1)) != farm.CodeExhausted {
		t.Error("without memory: more than what is small was gathered, or less")
	}
}

// What ReadAll gives back is its own: a request may have been charged before.
func TestReadAllGivesBackWhatItCharged(t *testing.T) {
	t.Parallel()
	const before, limit = 1 << 20, 1 << 20
	for _, c := range []struct {
		size, length int64
		err          error
		held         int64
	}{
		{100_000, -1, nil, 400_000},
		{100_000, 100_000, nil, 400_000},
		{limit, -1, nil, 4 * limit},
		{limit + 1, -1, budget.ErrTooLong, 0},
		{limit + 1, limit + 1, budget.ErrTooLong, 0},
	} {
		ctx, hold := budget.New(256<<20).With(t.Context(), "a", 0)
		if err := budget.Charge(ctx, before); err != nil {
			t.Fatal(err)
		}
		text, err := budget.ReadAll(ctx, bytes.NewReader(make([]byte, c.size)), c.length, limit)
		if !errors.Is(err, c.err) || err == nil && int64(len(text)) != c.size {
			t.Errorf("%d bytes of length %d: %d, %v", c.size, c.length, len(text), err)
		}
		if got := hold.Bytes() - before; got != c.held {
			t.Errorf("%d bytes of length %d: %d are charged, want %d", c.size, c.length, got, c.held)
		}
		hold.Release()
	}
}

// Bodies that are half read do not wait for each other: what is not there for the next step is refused, and what was charged is given back.
func TestHalfReadBodiesDoNotWait(t *testing.T) {
	t.Parallel()
	b := budget.New(size)
	for _, length := range []int64{-1, 3 << 20} {
		ctx, hold := b.With(t.Context(), "a", 0)
		var other *budget.Hold
		body := &pieces{sizes: []int{100 << 10, 3<<20 - 100<<10}, held: func() int64 {
			if hold.Bytes() > 0 && other == nil {
				other, _ = b.TryAcquire("a", share-hold.Bytes())
			}
			return hold.Bytes()
		}}
		if _, err := budget.ReadAll(ctx, body, length, 4<<20); farm.CodeOf(err) != farm.CodeExhausted {
			t.Errorf("of length %d: ReadAll = %v", length, err)
		}
		other.Release()
		if got := b.Stats(); got.Used != 0 || got.Waited != 0 {
			t.Errorf("of length %d: afterwards %+v", length, got)
		}
	}
}

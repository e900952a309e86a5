package budget_test

import (
	"context"
	"errors"
	"runtime"
	"testing"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func granted(p *budget.Place) bool {
	select {
	case <-p.Granted():
		return true
	default:
		return false
	}
}

func TestTenantHasAtMostHalfOfThePlaces(t *testing.T) {
	t.Parallel()
	for _, share := range []int{1, 2, 64} {
		places := budget.NewPlaces(2 * share)
		var own []*budget.Place
		for n := 1; n <= share+1; n++ {
			own = append(own, places.Ask("a"))
			if got := granted(own[n-1]); got != (n <= share) {
				t.Errorf("place %d of a tenant, with a share of %d: granted %v", n, share, got)
			}
		}
		other := places.Ask("b")
		if !granted(other) {
			t.Error("another tenant did not get a place")
		}
		other.Leave()
		if granted(own[share]) {
			t.Error("a place of another tenant was given to one that has its share")
		}
		own[0].Leave()
		own[0].Leave()
		if next := places.Ask("a"); !granted(own[share]) || granted(next) {
			t.Error("a place that became free did not go to the one that waited")
		}
	}
}

// A request that ends before it is granted takes nothing, and those behind it move up.
func TestLeaveBeforeThePlaceIsGranted(t *testing.T) {
	t.Parallel()
	places := budget.NewPlaces(2)
	first, second, third := places.Ask("a"), places.Ask("a"), places.Ask("a")
	second.Leave()
	first.Leave()
	if granted(second) || !granted(third) {
		t.Errorf("granted: second %v, third %v", granted(second), granted(third))
	}
	third.Leave()
	if !granted(places.Ask("a")) {
		t.Error("a place is lost")
	}
}

// A tenant decodes its large bodies one after the other where others need the cores, too.
func TestCoresAreSharedBetweenTenants(t *testing.T) {
	t.Parallel()
	b := budget.New(size)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	ctx, hold := b.With(gone, "a", 0)
	defer hold.Release()
	var own []func()
	for len(own) <= runtime.GOMAXPROCS(0) {
		leave, err := budget.Core(ctx, budget.SmallBytes+1)
		if err != nil {
			break
		}
		own = append(own, leave)
	}
	if want := max(1, runtime.GOMAXPROCS(0)/2); len(own) != want {
		t.Errorf("a tenant alone has %d cores, want %d of %d", len(own), want, runtime.GOMAXPROCS(0))
	}
	other, hold := b.With(gone, "b", 0)
	defer hold.Release()
	if leave, err := budget.Core(other, budget.SmallBytes+1); err != nil {
		t.Errorf("another tenant: %v", err)
	} else {
		leave()
	}
	own[0]()
	own[0]()
	leave, err := budget.Core(ctx, budget.SmallBytes+1)
	if err != nil {
		t.Fatalf("a core that was given back: %v", err)
	}
	if _, err := budget.Core(ctx, budget.SmallBytes+1); !errors.Is(err, context.Canceled) {
		t.Errorf("a core that was given back twice is there twice: %v", err)
	}
	leave()
	taken, hold := b.With(gone, "a", 0)
	if err := budget.TakeCore(taken, budget.SmallBytes+1); err != nil {
		t.Errorf("TakeCore: %v", err)
	}
	if _, err := budget.Core(ctx, budget.SmallBytes+1); !errors.Is(err, context.Canceled) {
		t.Errorf("beside TakeCore: %v", err)
	}
	for what, ctx := range map[string]context.Context{"the request": taken, "the request without its bytes": budget.Without(taken)} {
		if leave, err := budget.Core(ctx, budget.SmallBytes+1); err != nil || budget.TakeCore(ctx, budget.SmallBytes+1) != nil {
			t.Errorf("%s that has a core waits for another one: %v", what, err)
		} else {
			leave()
		}
	}
	if _, err := budget.Core(ctx, budget.SmallBytes+1); !errors.Is(err, context.Canceled) {
		t.Errorf("the work of a request that has a core gave that back: %v", err)
	}
	budget.LeaveCore(ctx)
	budget.LeaveCore(budget.Without(taken))
	budget.LeaveCore(taken)
	if leave, err := budget.Core(ctx, budget.SmallBytes+1); err != nil {
		t.Errorf("after LeaveCore: %v", err)
	} else {
		leave()
	}
	testbed.Must(t, budget.TakeCore(taken, budget.SmallBytes+1))
	hold.Release()
	hold.Release()
	if _, err := budget.Core(ctx, budget.SmallBytes+1); err != nil {
		t.Errorf("after the end of a request: %v", err)
	}
	unlimited, _ := (*budget.Budget)(nil).With(gone, "a", 0)
	for what, ctx := range map[string]context.Context{"a Hold": t.Context(), "a Budget": unlimited} {
		if leave, err := budget.Core(ctx, budget.SmallBytes+1); err != nil {
			t.Errorf("without %s: %v", what, err)
		} else {
			leave()
		}
	}
}

// Many small pieces of work of one request are as long as a large one.
func TestSmallWorkOfARequestAddsUp(t *testing.T) {
	t.Parallel()
	b := budget.New(size)
	request := func() (pieces int) {
		ctx := testbed.WithoutCore(t, b, "a")
		for ; ; pieces++ {
			if _, err := budget.Core(ctx, budget.SmallBytes/8); err != nil {
				return pieces
			}
			if err := budget.TakeCore(budget.Without(ctx), budget.SmallBytes/8); err != nil {
				return pieces
			}
		}
	}
	for range 2 {
		if got := request(); got != 4 {
			t.Errorf("without a core a request does %d pairs of eighths, want 4", got)
		}
	}
}

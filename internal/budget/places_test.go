package budget_test

import (
	"context"
	"errors"
	"runtime"
	"testing"

	"github.com/sandfarm/sandfarm/internal/budget"
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
	decoding, _, err := budget.Decoding(ctx, budget.SmallBytes+1)
	if err != nil {
		t.Errorf("Decoding: %v", err)
	}
	if _, err := budget.Core(ctx, budget.SmallBytes+1); !errors.Is(err, context.Canceled) {
		t.Errorf("beside Decoding: %v", err)
	}
	if _, err := budget.Core(ctx, budget.SmallBytes); err != nil {
		t.Errorf("small work: %v", err)
	}
	budget.Decoded(ctx)
	budget.Decoded(decoding)
	budget.Decoded(decoding)
	if _, err := budget.Core(ctx, budget.SmallBytes+1); err != nil {
		t.Errorf("after Decoded: %v", err)
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

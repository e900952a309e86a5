package budget_test

import (
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

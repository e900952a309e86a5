//go:build faults

package faulttest_test

import (
	"slices"
	"testing"

	"github.com/sandfarm/sandfarm/internal/faulttest"
)

// Workers and the API meet faults where they start, claim, return and retire members of the warm pool. A sandbox that is told ready has one
// container, one that is told closed has none, and no member stays claimed.
func TestPoolAtPoints(t *testing.T) {
	t.Parallel()
	f := newFarm(t, faulttest.Config{Workers: 3, Schedulers: 1, Links: true, Env: []string{"SANDFARM_WORKER_POOL=python=2"}})
	workers := f.Workers()
	points := slices.Repeat(bothSides("pool"), 3) // begin, ready, claim, drop: each comes at random
	t.Run("WorkerKilled", func(t *testing.T) {
		atPoints(t, f, atEach{name: "worker killed where it uses the warm pool", points: chosen(t, points, 2), processes: workers[1:], act: kill(f), with: creates})
	})
	t.Run("APIKilled", func(t *testing.T) {
		atPoints(t, f, atEach{name: "API killed where it claims from the warm pool", points: chosen(t, bothSides("pool"), 1), processes: []string{faulttest.API}, act: kill(f), with: creates})
	})
	if rounds() > 1 {
		t.Run("LinkCut", func(t *testing.T) {
			atPoints(t, f, atEach{name: "link cut where a worker uses the warm pool", points: points, processes: workers, act: cut, with: creates})
		})
	}
	f.End()
}

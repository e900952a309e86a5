//go:build faults

package faulttest_test

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/faulttest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// inSweep are the calls that the leading scheduler makes for the jobs of a dead worker, and for sandboxes whose time is up.
func inSweep() []point { return bothSides("job_open_routes", "job_enqueue", "job_accept") }

// inNodeEnd are the calls that the leading scheduler makes for a node that is gone.
func inNodeEnd() []point {
	return bothSides("node_lease", "sandbox_move", "job_finish", "hdel", "srem")
}

// killLeader kills the scheduler that first comes to a point, and returns a function that waits for this and starts the scheduler again. with
// is text of the call.
func killLeader(t *testing.T, f *faulttest.Farm, p point, with string, nth int) (await func()) {
	t.Helper()
	killed := killFirst(f, f.Schedulers(), testbed.Stop{Call: p.call, With: with, After: p.after, Nth: nth})
	return func() {
		t.Helper()
		var name string
		select {
		case name = <-killed:
			t.Logf("%s killed %s", name, p)
		case <-time.After(90 * time.Second):
			t.Errorf("no scheduler came to the point %s", p)
		}
		for _, other := range f.Schedulers() {
			f.Link(other).Clear()
		}
		if name != "" {
			f.Start(name)
		}
	}
}

// killFirst kills the process that first comes to a stop, and sends its name when it is dead.
func killFirst(f *faulttest.Farm, processes []string, stop testbed.Stop) <-chan string {
	killed := make(chan string, 1)
	var first sync.Once
	for _, name := range processes {
		stop.Do = func([]string) (pass bool) {
			pass = true
			first.Do(func() {
				pass = false
				f.Kill(name)
				killed <- name
			})
			return pass
		}
		f.Link(name).At(stop)
	}
	return killed
}

// leaderKilledAtPoints kills the leading scheduler before and after each of its calls while it hands the jobs of a dead worker to others and
// closes sandboxes whose time is up: the next leader goes on.
func leaderKilledAtPoints(t *testing.T, f *faulttest.Farm) {
	c := f.Case(t, "leader killed at each point of its sweep")
	boxes := c.Boxes(3)
	for _, p := range slices.Repeat(chosen(t, inSweep(), 2), rounds()) {
		short := f.Box(wire.CreateRequest{})
		jobs := work(c, boxes)
		holder := f.AwaitHolder(jobs[0].ID)
		var await func()
		c.Fault(func() {
			nth := 1 // of those that the fault causes
			if p.call == "job_open_routes" {
				nth += rand.IntN(8) //nolint:gosec // chance, not a secret
			}
			await = killLeader(t, f, p, "", nth)
			f.Kill(holder)
			expireSoon(t, f, short)
		}, func() { await(); f.Start(holder); f.AwaitReady() })
		settled(t, f, c)
		f.Until(60*time.Second, "the sandbox whose time is up has ended", func() bool {
			now, err := f.Sandbox(t.Context(), short)
			return err == nil && now.State == "expired" && !slices.Contains(f.Containers(), short)
		})
	}
	c.End()
}

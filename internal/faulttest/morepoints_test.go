//go:build faults

package faulttest_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/faulttest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// inMoreWork are the calls that a worker makes for long output, for a command in the background, and for files.
func inMoreWork() []point {
	return bothSides("job_checkpoint", "event_archive", "job_leave_fifo", "PUT artifacts", "PUT records")
}

// moreWorkAtPoints lets workers that have such work meet faults.
func moreWorkAtPoints(t *testing.T, f *faulttest.Farm) {
	workers := f.Workers()
	atPoints(t, f, atEach{name: "worker killed at points of more work", points: chosen(t, inMoreWork(), 5), processes: workers[1:], act: kill(f), with: moreWork})
	if rounds() > 1 {
		atPoints(t, f, atEach{name: "link cut at points of more work", points: inMoreWork(), processes: workers, act: cut, with: moreWork})
		atPoints(t, f, atEach{name: "job cancelled at points of more work", points: inMoreWork(), processes: workers, with: moreWork})
	}
}

// moreWork is output that is stored before its end, events that outgrow Redis, and commands, of which some are in the background.
func moreWork(c *faulttest.Case) traffic {
	boxes := c.Boxes(4)
	kinds := []faulttest.Run{
		{Lines: 1, Loud: 11},
		{Lines: 2, Files: 1, Code: "print('x' * 40_000)", Out: xs(40_000)},
		{Lines: 5, Background: true},
		{Lines: 2, Files: 1, Command: true},
	}
	busy := make([]sync.Mutex, len(kinds))
	return traffic{before: func() {}, after: func() {}, send: func(n int) {
		kind := n % len(kinds)
		if busy[kind].TryLock() {
			defer busy[kind].Unlock()
			c.Ran(boxes[kind], kinds[kind])
		}
	}}
}

// stoppedWorkerKilled kills a worker that stops in order while it gives its jobs back: they go on all the same.
func stoppedWorkerKilled(t *testing.T, f *faulttest.Farm) {
	c := f.Case(t, "stopping worker killed at each point")
	for _, p := range slices.Repeat(chosen(t, bothSides("job_requeue"), 1), rounds()) {
		var jobs []*faulttest.Job
		for _, box := range c.Boxes(4) {
			jobs = append(jobs, c.Insist(box, faulttest.Run{Lines: 3, Held: true}))
		}
		holder := f.AwaitHolder(jobs[0].ID)
		for _, j := range jobs {
			f.AwaitHolder(j.ID)
		}
		reached := make(chan struct{})
		p.stop(f, holder, 1, func([]string) bool { close(reached); f.Kill(holder); return false })
		c.Fault(func() { f.Term(holder) }, nil)
		f.Link(holder).Clear()
		select {
		case <-reached:
		default:
			t.Errorf("%s did not come to the point %s", holder, p)
		}
		for _, j := range jobs {
			f.AwaitHolder(j.ID)
		}
		c.Release(jobs...)
		settled(t, f, c)
		f.Start(holder)
		f.AwaitReady()
	}
	c.End()
}

// requests are what the API gets: code that is too long for Redis, and changes of a sandbox. A change that was told is there.
func requests(t *testing.T, f *faulttest.Farm, c *faulttest.Case) traffic {
	boxes := c.Boxes(4)
	var changing sync.Mutex
	long := "# " + xs(100_000)
	return traffic{before: func() {}, after: func() {}, send: func(n int) {
		if n%2 == 0 {
			c.Insist(boxes[n/2%len(boxes)], faulttest.Run{Code: long})
		} else if changing.TryLock() {
			defer changing.Unlock()
			change(t, f, boxes[0], fmt.Sprint(n))
		}
	}}
}

// change gives a sandbox a label, as a careful caller does: again and again until it is told.
func change(t *testing.T, f *faulttest.Farm, box, value string) {
	labels := map[string]string{"changed": value}
	for end := time.Now().Add(time.Minute); ; <-time.After(200 * time.Millisecond) {
		reported, err := f.Update(t.Context(), box, wire.UpdateRequest{Labels: &labels})
		if err == nil && reported.Labels["changed"] == value {
			break
		}
		if time.Now().After(end) {
			t.Errorf("change of %s: %v %+v", box, err, reported)
			return
		}
	}
	for end := time.Now().Add(time.Minute); ; <-time.After(200 * time.Millisecond) {
		now, err := f.Sandbox(t.Context(), box)
		if err == nil {
			if now.Labels["changed"] != value {
				t.Errorf("%s was told to have the label %s, and has %v", box, value, now.Labels)
			}
			return
		}
		if time.Now().After(end) {
			t.Errorf("read %s: %v", box, err)
			return
		}
	}
}

// restorerKilled kills the worker that restores the sandboxes of a Redis that was wiped: another one goes on.
func restorerKilled(t *testing.T, f *faulttest.Farm) (await func()) {
	t.Helper()
	p := chosen(t, bothSides("sandbox_restore"), 1)[0]
	killed := killFirst(f, f.Workers(), testbed.Stop{Call: p.call, After: p.after})
	return func() {
		t.Helper()
		select {
		case name := <-killed:
			t.Logf("%s killed %s", name, p)
			f.Start(name)
		case <-time.After(90 * time.Second):
			t.Errorf("no worker came to the point %s", p)
		}
		for _, name := range f.Workers() {
			f.Link(name).Clear()
		}
		f.AwaitReady()
	}
}

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

//go:build faults

package faulttest_test

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/faulttest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// point is a place in a job's life: just before or just after one call of Redis, or a request to the object store ("PUT artifacts").
type point struct {
	call  string
	after bool
}

// stop acts once when a process comes to the point for the nth time.
func (p point) stop(f *faulttest.Farm, process string, nth int, do func(words []string) (pass bool)) {
	if strings.Contains(p.call, " ") {
		f.S3Link().At(faulttest.S3Stop{Process: process, Call: p.call, After: p.after, Nth: nth, Do: do})
		return
	}
	f.Link(process).At(testbed.Stop{Call: p.call, After: p.after, Nth: nth, Do: do})
}

func (p point) String() string {
	if p.after {
		return "after " + p.call
	}
	return "before " + p.call
}

// bothSides are the points around calls.
func bothSides(calls ...string) (all []point) {
	for _, call := range calls {
		all = append(all, point{call, false}, point{call, true})
	}
	return all
}

// inWorker are the calls that a worker makes for an execution with a file, and for a run, which starts a sandbox and ends it.
func inWorker() []point {
	return bothSides("task_dequeue", "job_claim", "node_reserve", "sandbox_move", "event_append", "stored_reserve", "manifest_write", "job_finish", "task_done")
}

// inAPI are the calls that the API makes for a long request, which it accepts and enqueues, and for a change of a sandbox.
func inAPI() []point { return bothSides("job_accept", "PUT records", "sandbox_update") }

// A job meets a fault of its process exactly before and after each call of Redis in its life.
func TestNamedPoints(t *testing.T) {
	t.Parallel()
	f := newFarm(t, faulttest.Config{Workers: 6, Schedulers: 1, Links: true})
	workers := f.Workers()
	pause := func(name string, _ []string) bool {
		f.Pause(name)
		defer f.Resume(name)
		<-time.After(12 * time.Second) // longer than a heartbeat lives
		return true
	}
	t.Run("WorkerKilled", func(t *testing.T) {
		atPoints(t, f, atEach{name: "worker killed at each point", points: chosen(t, inWorker(), 15), processes: workers[1:], act: kill(f)})
	})
	t.Run("WorkerPaused", func(t *testing.T) {
		atPoints(t, f, atEach{name: "worker paused for 12 s at a point", points: chosen(t, inWorker(), 5), processes: workers[1:], act: pause})
	})
	t.Run("LinkCut", func(t *testing.T) {
		atPoints(t, f, atEach{name: "link to Redis cut at each point", points: chosen(t, inWorker(), 12), processes: workers, act: cut})
	})
	t.Run("Canceled", func(t *testing.T) {
		atPoints(t, f, atEach{name: "job cancelled at each point", points: chosen(t, inWorker(), 12), processes: workers})
	})
	t.Run("MoreWork", func(t *testing.T) { moreWorkAtPoints(t, f) })
	t.Run("StoppedWorkerKilled", func(t *testing.T) { stoppedWorkerKilled(t, f) })
	api := []string{faulttest.API}
	asked := func(c *faulttest.Case) traffic { return requests(t, f, c) }
	t.Run("APIKilled", func(t *testing.T) {
		atPoints(t, f, atEach{name: "API killed at each point", points: chosen(t, inAPI(), 3), processes: api, act: kill(f), with: asked})
	})
	t.Run("APILinkCut", func(t *testing.T) {
		atPoints(t, f, atEach{name: "link of the API cut at each point", points: chosen(t, inAPI(), 3), processes: api, act: cut, with: asked})
	})
	f.End()
}

// kill kills the process.
func kill(f *faulttest.Farm) func(string, []string) bool {
	return func(name string, _ []string) bool { f.Kill(name); return false }
}

// cut cuts the link of the process.
func cut(string, []string) bool { return false }

// jobID finds the jobs that a call of Redis is about.
var jobID = regexp.MustCompile("job_[0-9a-z]{26}")

// atEach is a fault at points.
type atEach struct {
	name      string
	points    []point
	processes []string
	act       func(process string, words []string) (pass bool) // nil cancels the job that the call is about
	with      func(c *faulttest.Case) traffic                  // nil: executions and runs
}

// traffic is what callers do while processes meet points.
type traffic struct {
	before func()      // each batch of points; nothing happens to it
	send   func(n int) // for the nth time; it may take long
	after  func()      // each batch
}

// jobs are executions in a few sandboxes, and runs.
func jobs(c *faulttest.Case) traffic {
	boxes := c.Boxes(4)
	return traffic{before: func() {}, after: func() {}, send: func(n int) {
		run := faulttest.Run{Lines: rand.IntN(4), Files: 1, Alone: n%6 == 0 || n > 200}
		c.Insist(boxes[rand.IntN(len(boxes))], run) // the process that takes it may be the one that dies
	}}
}

// atPoints lets a fault happen to a process at each of the points, several processes at a time, while callers are busy.
func atPoints(t *testing.T, f *faulttest.Farm, at atEach) {
	t.Helper()
	c := f.Case(t, at.name)
	if at.with == nil {
		at.with = jobs
	}
	callers := at.with(c)
	if at.act == nil {
		at.act = func(_ string, words []string) bool {
			for _, id := range jobID.FindAllString(strings.Join(words, " "), -1) {
				c.Cancel(id)
			}
			return true
		}
	}
	points := slices.Repeat(at.points, rounds())
	for len(points) > 0 {
		n := min(len(points), len(at.processes))
		callers.before()
		h := &hits{f: f, act: at.act, left: slices.Clone(points[:n]), free: slices.Clone(at.processes), fired: make(chan point, n)}
		points = points[n:]
		h.arm(at.processes)
		h.await(t, callers.send)
		for _, process := range at.processes {
			f.Link(process).Clear()
			f.S3Link().Clear(process)
			if !f.Alive(process) {
				f.Start(process)
			}
		}
		h.sent.Wait() // some may wait for the process that is back now
		c.Fault(func() {}, f.AwaitReady)
		callers.after()
	}
	c.End()
}

// hits hands points out to processes: the first process that reaches a point gets it, and each process gets one.
type hits struct {
	f     *faulttest.Farm
	act   func(name string, words []string) bool
	fired chan point
	acts  sync.WaitGroup
	sent  sync.WaitGroup // jobs

	mu   sync.Mutex
	left []point
	free []string
}

// arm adds every point to the links of all processes.
func (h *hits) arm(processes []string) {
	for _, p := range slices.Clone(h.left) {
		for _, process := range processes {
			h.add(process, p, 1+rand.IntN(2))
		}
	}
}

// add adds a point to the link of a process, at the nth such call.
func (h *hits) add(process string, p point, nth int) {
	p.stop(h.f, process, nth, func(words []string) bool {
		if h.f.LastTry(process) { // the farm would rightly give that job up
			h.add(process, p, 1)
			return true
		}
		if !h.take(process, p) {
			return true
		}
		h.acts.Add(1)
		defer h.acts.Done()
		h.fired <- p
		return h.act(process, words)
	})
}

// take reports whether this process gets this point.
func (h *hits) take(process string, p point) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	at, who := slices.Index(h.left, p), slices.Index(h.free, process)
	if at < 0 || who < 0 {
		return false
	}
	h.left, h.free = slices.Delete(h.left, at, at+1), slices.Delete(h.free, who, who+1)
	return true
}

// await sends until every point was reached.
func (h *hits) await(t *testing.T, send func(n int)) {
	t.Helper()
	defer h.acts.Wait()
	limit := time.After(4 * time.Minute)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for n, waiting := 0, cap(h.fired); waiting > 0; {
		select {
		case p := <-h.fired:
			waiting--
			t.Logf("%s", p)
		case <-limit:
			h.mu.Lock()
			defer h.mu.Unlock()
			t.Errorf("not reached: %s", fmt.Sprint(h.left))
			return
		case <-tick.C:
			n++
			if n > 200 && n%10 != 0 { // the last point may need a process that is spared until its jobs have ended
				continue
			}
			h.sent.Go(func() { send(n) })
		}
	}
}

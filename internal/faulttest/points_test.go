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

	"github.com/sandfarm/sandfarm/api/wire"
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
	atPoints(t, f,
		atEach{test: "WorkerKilled", name: "worker killed at each point", points: inWorker(), sample: 15, processes: workers[1:], act: kill(f)},
		atEach{test: "WorkerPaused", name: "worker paused for 12 s at a point", points: inWorker(), sample: 5, processes: workers[1:], act: pause},
		atEach{test: "LinkCut", name: "link to Redis cut at each point", points: inWorker(), sample: 12, processes: workers, act: cut},
		atEach{test: "Canceled", name: "job cancelled at each point", points: inWorker(), sample: 12, processes: workers},
		atEach{test: "MoreWork", name: "worker killed at points of more work", points: inMoreWork(), sample: 5, processes: workers[1:], act: kill(f), with: moreWork},
		atEach{test: "MoreWorkLinkCut", name: "link cut at points of more work", points: inMoreWork(), processes: workers, act: cut, with: moreWork},
		atEach{test: "MoreWorkCanceled", name: "job cancelled at points of more work", points: inMoreWork(), processes: workers, with: moreWork},
	)
	t.Run("StoppedWorkerKilled", func(t *testing.T) { stoppedWorkerKilled(t, f) })
	api := []string{faulttest.API}
	asked := func(c *faulttest.Case) traffic { return requests(t, f, c) }
	atPoints(t, f,
		atEach{test: "APIKilled", name: "API killed at each point", points: inAPI(), sample: 3, processes: api, act: kill(f), with: asked},
		atEach{test: "APILinkCut", name: "link of the API cut at each point", points: inAPI(), sample: 3, processes: api, act: cut, with: asked},
	)
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
	test      string
	name      string
	points    []point
	sample    int // so many of the points by chance; 0: all of them, in the whole suite only
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

// atPoints lets faults happen, one kind after the other.
func atPoints(t *testing.T, f *faulttest.Farm, all ...atEach) {
	t.Helper()
	for _, at := range all {
		if at.sample > 0 || rounds() > 1 {
			t.Run(at.test, func(t *testing.T) { at.happens(t, f) })
		}
	}
}

// happens lets a fault happen to a process at each of the points, several processes at a time, while callers are busy.
func (at atEach) happens(t *testing.T, f *faulttest.Farm) {
	t.Helper()
	c := f.Case(t, at.name)
	if at.sample > 0 {
		at.points = chosen(t, at.points, at.sample)
	}
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

// inMoreWork are the calls that a worker makes for long output, for a command in the background, and for files.
func inMoreWork() []point {
	return bothSides("job_checkpoint", "event_archive", "job_leave_fifo", "PUT artifacts", "PUT records")
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
		c.Completed("a job")
		f.Back(holder)
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
	again := func(what string, call func() (wire.Sandbox, error)) (got string) {
		for end := time.Now().Add(time.Minute); ; <-time.After(200 * time.Millisecond) {
			now, err := call()
			if err == nil {
				return now.Labels["changed"]
			}
			if time.Now().After(end) {
				t.Errorf("%s %s: %v", what, box, err)
				return ""
			}
		}
	}
	reported := again("change", func() (wire.Sandbox, error) {
		return f.Update(t.Context(), box, wire.UpdateRequest{Labels: &labels})
	})
	testbed.Diff(t, "the label that was told", value, reported)
	testbed.Diff(t, "the label that is there", value, again("read", func() (wire.Sandbox, error) { return f.Sandbox(t.Context(), box) }))
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
		}, func() { await(); f.Back(holder) })
		c.Completed("a job")
		f.AwaitState(short, "expired")
		f.Until(60*time.Second, "the sandbox whose time is up is gone", func() bool { return !slices.Contains(f.Containers(), short) })
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
	atPoints(t, f,
		atEach{test: "WorkerKilled", name: "worker killed where it uses the warm pool", points: points, sample: 2, processes: workers[1:], act: kill(f), with: creates},
		atEach{test: "APIKilled", name: "API killed where it claims from the warm pool", points: bothSides("pool"), sample: 1, processes: []string{faulttest.API}, act: kill(f), with: creates},
		atEach{test: "LinkCut", name: "link cut where a worker uses the warm pool", points: points, processes: workers, act: cut, with: creates},
	)
	f.End()
}

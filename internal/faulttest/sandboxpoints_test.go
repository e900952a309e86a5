//go:build faults

package faulttest_test

import (
	"sync"
	"testing"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/faulttest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// inCreate are the calls that a worker makes for a creation.
func inCreate() []point {
	return bothSides("task_dequeue", "job_claim", "node_reserve", "sandbox_move", "job_finish", "task_done")
}

// inClose are the calls that a worker makes for a close.
func inClose() []point {
	return bothSides("task_dequeue", "job_claim", "job_route", "sandbox_move", "node_reserve", "job_finish", "task_done")
}

// The creation and the close of a sandbox meet a fault of their process before and after each call of Redis. A sandbox that is told ready runs
// code, and has one container; one that is told closed has none. Then the leading scheduler meets one while it makes up for a dead worker.
func TestSandboxesAtPoints(t *testing.T) {
	t.Parallel()
	f := newFarm(t, faulttest.Config{Workers: 4, Links: true})
	workers := f.Workers()
	atPoints(t, f,
		atEach{test: "CreatingWorkerKilled", name: "worker killed at each point of a creation", points: inCreate(), sample: 3, processes: workers[1:], act: kill(f), with: creates},
		atEach{test: "ClosingWorkerKilled", name: "worker killed at each point of a close", points: inClose(), sample: 3, processes: workers[1:], act: kill(f), with: closes},
	)
	t.Run("LeaderKilled", func(t *testing.T) { leaderKilledAtPoints(t, f) })
	atPoints(t, f,
		atEach{test: "CreatingLinkCut", name: "link cut at each point of a creation", points: inCreate(), processes: workers, act: cut, with: creates},
		atEach{test: "ClosingLinkCut", name: "link cut at each point of a close", points: inClose(), processes: workers, act: cut, with: closes},
		atEach{test: "CreatingAPIKilled", name: "API killed while it accepts a creation", points: bothSides("job_accept"), processes: []string{faulttest.API}, act: kill(f), with: creates},
	)
	f.End()
}

// stock is sandboxes that a case has made and not closed yet.
type stock struct {
	mu    sync.Mutex
	boxes []string
}

func (s *stock) put(box string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if box != "" {
		s.boxes = append(s.boxes, box)
	}
}

// take takes a sandbox; "" if there is none.
func (s *stock) take() (box string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.boxes) > 0 {
		box, s.boxes = s.boxes[0], s.boxes[1:]
	}
	return box
}

// atOnce is how many callers create or close at the same time: enough, although some wait for the successor of a dead worker.
const atOnce = 10

// each calls do for every sandbox, several at a time, and empties the stock.
func (s *stock) each(do func(box string)) {
	var group sync.WaitGroup
	for range atOnce {
		group.Go(func() {
			for box := s.take(); box != ""; box = s.take() {
				do(box)
			}
		})
	}
	group.Wait()
}

// creates are creations. Between the batches, each sandbox runs a job and is closed.
func creates(c *faulttest.Case) traffic {
	var made stock
	slots := make(chan struct{}, atOnce)
	return traffic{
		before: func() {},
		send: func(int) {
			select {
			case slots <- struct{}{}:
				made.put(c.Create(wire.CreateRequest{}))
				<-slots
			default:
			}
		},
		after: func() {
			made.each(func(box string) {
				c.Ran(box, faulttest.Run{Lines: 1, Files: 1, First: true})
				c.Close(box)
			})
		},
	}
}

// closes are closes of sandboxes that are made between the batches.
func closes(c *faulttest.Case) traffic {
	var made stock
	var few sync.Mutex
	return traffic{
		before: func() {
			var wanted stock
			for range atOnce {
				wanted.put("one")
			}
			wanted.each(func(string) {
				box := c.Create(wire.CreateRequest{})
				made.put(box)
			})
		},
		send: func(n int) {
			box := made.take()
			if box == "" { // no process has reached the last points yet
				if !few.TryLock() {
					return
				}
				box = c.Create(wire.CreateRequest{})
				few.Unlock()
			}
			if box != "" {
				c.Close(box)
			}
		},
		after: func() { made.each(c.Close) },
	}
}

// inside is something that dies inside a sandbox.
type inside struct {
	name string
	run  faulttest.Run
	harm func(box string)
	dead bool // the sandbox is lost with it
}

// Something dies inside a sandbox: the caller is told what, and no other sandbox notices.
func insideSandbox(t *testing.T, f *faulttest.Farm) {
	for _, one := range []inside{
		{name: "agent killed in the sandbox", run: faulttest.Run{Lines: 600, Want: []string{"lost"}}, dead: true, harm: f.KillSandbox},
		{name: "kernel killed while code runs", run: faulttest.Run{Lines: 3, Code: "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", Want: []string{"completed", "failed"}}},
		{name: "sandbox out of memory", run: faulttest.Run{Lines: 3, Code: "x = []\nwhile True:\n    x.append(bytearray(16 << 20))", Want: []string{"completed", "failed", "lost"}}},
	} {
		one.happens(t, f)
	}
}

func (one inside) happens(t *testing.T, f *faulttest.Farm) {
	c := f.Case(t, one.name)
	memory := 256
	box := f.Box(wire.CreateRequest{Resources: &wire.ResourcesRequest{MemoryMB: &memory}})
	job := c.Insist(box, one.run)
	f.AwaitHolder(job.ID)
	c.Fault(func() {
		if one.harm != nil {
			one.harm(box)
		}
	}, nil)
	end, err := f.Wait(t.Context(), job.ID)
	testbed.Must(t, err)
	reported := ""
	switch {
	case end.Error != nil:
		reported = end.Error.Message
	case end.Result != nil && end.Result.Execute != nil && end.Result.Execute.Error != nil:
		reported = end.Result.Execute.Error.Value
	}
	t.Logf("%s: %s: %s", one.name, end.State, reported)
	if len(reported) < 20 {
		t.Errorf("the caller is told %q: %+v", reported, end)
	}
	if one.dead {
		f.AwaitState(box, "lost")
	} else {
		c.Own(box)
		f.Completed("a job", c.Insist(box, faulttest.Run{Lines: 1}).ID) // in a new kernel
	}
	c.End()
}

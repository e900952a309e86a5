//go:build faults

package faulttest_test

import (
	"sync"
	"testing"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/faulttest"
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
	t.Run("CreatingWorkerKilled", func(t *testing.T) {
		atPoints(t, f, atEach{name: "worker killed at each point of a creation", points: chosen(t, inCreate(), 3), processes: workers[1:], act: kill(f), with: creates})
	})
	t.Run("ClosingWorkerKilled", func(t *testing.T) {
		atPoints(t, f, atEach{name: "worker killed at each point of a close", points: chosen(t, inClose(), 3), processes: workers[1:], act: kill(f), with: closes})
	})
	t.Run("LeaderKilled", func(t *testing.T) { leaderKilledAtPoints(t, f) })
	if rounds() > 1 {
		t.Run("CreatingLinkCut", func(t *testing.T) {
			atPoints(t, f, atEach{name: "link cut at each point of a creation", points: inCreate(), processes: workers, act: cut, with: creates})
		})
		t.Run("ClosingLinkCut", func(t *testing.T) {
			atPoints(t, f, atEach{name: "link cut at each point of a close", points: inClose(), processes: workers, act: cut, with: closes})
		})
		t.Run("CreatingAPIKilled", func(t *testing.T) {
			atPoints(t, f, atEach{name: "API killed while it accepts a creation", points: bothSides("job_accept"), processes: []string{faulttest.API}, act: kill(f), with: creates})
		})
	}
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

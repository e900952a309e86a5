package queuetest

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/queue"
)

// gatePausesAQueue closes the gate of one of two queues, and opens it.
func gatePausesAQueue(t *testing.T, factory Factory) {
	b := setup(t, factory)
	var open atomic.Bool
	s := b.serve(t, nil, func(c *queue.ServerConfig) {
		c.Queues = map[string]int{"cpu": 1, "node-a": 1}
		c.Gate = func(name string) bool { return name != "cpu" || open.Load() }
	})
	for range 3 { // the paused queue does not delay the other one, and keeps its tasks
		b.enqueue(t, "cpu", job("job_held"))
		passing := job("job_" + time.Now().Format(time.RFC3339Nano))
		b.enqueue(t, "node-a", passing)
		b.expect(t, passing)
	}
	if state, err := b.State(t.Context(), "cpu", "job_held"); err != nil || state != "pending" {
		t.Errorf("task behind the gate is %q, %v; want pending", state, err)
	}
	open.Store(true)
	s.Wake()
	b.expect(t, job("job_held"))
	open.Store(false)
	for _, id := range []string{"job_first", "job_second"} { // a poll that started while the gate was open has ended after the first task
		passing := job(id)
		b.enqueue(t, "node-a", passing)
		b.expect(t, passing)
		b.enqueue(t, "cpu", job("job_again"))
	}
	open.Store(true) // without a wake-up: the gate is asked again after a while
	b.expect(t, job("job_again"))
}

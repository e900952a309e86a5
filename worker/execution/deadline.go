package execution

import (
	"context"
	"time"
)

// freeAfter is how long a frame may be handled on the execution's own time.
const freeAfter = time.Second

// deadline ends a context when the agent has not ended an execution in time. Time for which the worker itself waited, for Redis or for the
// object store, does not count: the code may have ended long ago. Nil: there is none.
type deadline struct {
	timer *time.Timer
	left  time.Duration
	since time.Time // when it last began to count, or to pause
}

// withDeadline returns a context that ends with this cause once the limit is over. The caller calls stop.
func withDeadline(ctx context.Context, limit time.Duration, cause error) (bounded context.Context, d *deadline, stop func()) {
	bounded, end := context.WithCancelCause(ctx)
	d = &deadline{left: limit, since: time.Now()}
	d.timer = time.AfterFunc(limit, func() { end(cause) })
	return bounded, d, func() {
		d.timer.Stop()
		end(nil)
	}
}

// pause stops the time.
func (d *deadline) pause() {
	if d == nil {
		return
	}
	d.timer.Stop()
	now := time.Now()
	d.left -= now.Sub(d.since)
	d.since = now
}

// resume starts the time again. A short pause counts: an agent that sends without end does not get more time with each frame.
func (d *deadline) resume() {
	if d == nil {
		return
	}
	now := time.Now()
	if paused := now.Sub(d.since); paused < freeAfter {
		d.left -= paused
	}
	d.since = now
	d.timer.Reset(max(d.left, 0))
}

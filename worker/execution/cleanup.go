package execution

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/worker/retry"
)

const (
	// forgetEvery is how long executions that may be forgotten are gathered, so that many short jobs cost their agent one call.
	forgetEvery = 500 * time.Millisecond
	// maxForget bounds the executions of one call, and those of one sandbox that wait while its agent does not answer. What is beyond it is
	// left to the agent, which drops frames on its own.
	maxForget = 512
)

// cleanups do what may only happen once the ends of jobs are durable. Until then a crash of Redis may bring a job back, which then
// attaches to its execution in the agent again.
type cleanups struct {
	mu      sync.Mutex
	forget  map[string]*forgetting // by sandbox
	running bool                   // there is a loop
}

// forgetting holds the executions of one sandbox that its agent may forget.
type forgetting struct {
	sandbox *farm.Sandbox
	waiting []ended // the oldest first
	busy    bool    // a call is on its way
}

// ended is an execution whose job has ended.
type ended struct {
	id  string
	due time.Time // when the end is durable
}

// CleanUp does what an outcome leaves to do once its commit is durable: it lets the agent forget the executions, and calls Cleanup. It
// returns at once; Wait waits for it.
func (x *Runner) CleanUp(ctx context.Context, sandbox *farm.Sandbox, o Outcome) {
	ctx = context.WithoutCancel(ctx)
	after := x.store.DurableAfter()
	if o.Cleanup != nil {
		x.background.Go(func() {
			_ = retry.Sleep(ctx, after)
			o.Cleanup(ctx)
		})
	}
	if sandbox == nil || len(o.Forget) == 0 {
		return
	}
	c := &x.cleanups
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.forget == nil {
		c.forget = map[string]*forgetting{}
	}
	f := c.forget[sandbox.ID]
	if f == nil {
		f = &forgetting{sandbox: sandbox}
		c.forget[sandbox.ID] = f
	}
	for _, id := range o.Forget {
		f.waiting = append(f.waiting, ended{id: id, due: time.Now().Add(after)})
	}
	if beyond := len(f.waiting) - maxForget; beyond > 0 {
		f.waiting = slices.Delete(f.waiting, 0, beyond)
	}
	if !c.running {
		c.running = true
		x.background.Go(func() { x.forgetLoop(ctx) })
	}
}

// forgetLoop lets agents forget executions until none waits.
func (x *Runner) forgetLoop(ctx context.Context) {
	for {
		select {
		case <-time.After(forgetEvery):
		case <-x.stopped: // the agents drop frames on their own
			return
		}
		if !x.forgetDue(ctx, time.Now()) {
			return
		}
	}
}

// forgetDue sends to each agent what it may forget by now. It reports whether the loop must continue.
func (x *Runner) forgetDue(ctx context.Context, now time.Time) bool {
	c := &x.cleanups
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, f := range c.forget {
		if f.busy {
			continue
		}
		n := 0
		for n < len(f.waiting) && !f.waiting[n].due.After(now) {
			n++
		}
		if n > 0 {
			ids := make([]string, n)
			for i := range ids {
				ids[i] = f.waiting[i].id
			}
			f.waiting, f.busy = slices.Clone(f.waiting[n:]), true
			x.background.Go(func() { x.forgetAll(ctx, f, ids) })
		} else if len(f.waiting) == 0 {
			delete(c.forget, id)
		}
	}
	c.running = len(c.forget) > 0
	return c.running
}

// forgetAll lets one agent forget executions. Where no connection is open none is opened for it: the sandbox may be gone, and its agent drops
// frames on its own.
func (x *Runner) forgetAll(ctx context.Context, f *forgetting, ids []string) {
	ctx, done := context.WithTimeout(ctx, retry.CommitTimeout)
	defer done()
	if x.node.Connected(f.sandbox.ID) {
		if c, err := x.node.Connect(ctx, f.sandbox); err == nil {
			if err := c.ForgetAll(ctx, ids...); err != nil {
				x.log.DebugContext(ctx, "an agent did not forget ended executions", "sandbox_id", f.sandbox.ID, "error", err)
			}
		}
	}
	x.cleanups.mu.Lock()
	f.busy = false
	x.cleanups.mu.Unlock()
}

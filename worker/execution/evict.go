package execution

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/worker/retry"
)

// evictAfter is how long a job runs before its sandbox is searched for code that blocks it. Most jobs end earlier.
const evictAfter = 2 * time.Second

// evictGrace is how long stopped code may take to end before it is forgotten, which kills it: longer than the agent waits after its interrupt.
const evictGrace = 5 * time.Second

// evictPoll is how often evict looks whether stopped code has ended.
const evictPoll = 50 * time.Millisecond

// evictLater calls evict after evictAfter, unless stop is called first.
func (x *Runner) evictLater(ctx context.Context, sandbox *farm.Sandbox, job string) (stop func()) {
	ctx, done := context.WithCancel(ctx)
	x.background.Go(func() {
		if retry.Sleep(ctx, evictAfter) != nil {
			return
		}
		if err := x.evict(ctx, sandbox, job); err != nil && ctx.Err() == nil {
			x.log.WarnContext(ctx, "code of ended jobs may block a sandbox", "job_id", job, "sandbox_id", sandbox.ID, "error", err)
		}
	})
	return done
}

// evict stops code in a sandbox whose job has ended, or is unknown since Redis has lost it. No worker has such code and could stop it, and it
// would block the next job of the sandbox. It is interrupted as by a cancel, so that its kernel keeps what the jobs before it have left there.
func (x *Runner) evict(ctx context.Context, sandbox *farm.Sandbox, exceptJob string) error {
	ctx, done := context.WithTimeout(ctx, retry.CommitTimeout)
	defer done()
	c, err := x.node.Connect(ctx, sandbox)
	if err != nil {
		return err
	}
	list, err := c.Executions(ctx)
	if err != nil {
		return fmt.Errorf("list executions: %w", err)
	}
	var errs []error
	var stopped []string
	for _, e := range list {
		id := jobOf(e.ID)
		if e.Done || id == exceptJob || !farm.ValidID(farm.JobPrefix, id) {
			continue
		}
		job, err := x.store.Job(ctx, farm.Ref{Tenant: sandbox.Tenant, ID: id})
		switch {
		case farm.CodeOf(err) == farm.CodeNotFound:
		case err != nil:
			errs = append(errs, fmt.Errorf("read job of an execution: %w", err))
			continue
		case !job.State.Final():
			continue
		}
		x.log.InfoContext(ctx, "code of an ended job is stopped", "job_id", e.ID, "sandbox_id", sandbox.ID)
		stopped = append(stopped, e.ID)
	}
	return errors.Join(append(errs, stopAndForget(ctx, c, stopped...))...)
}

// stopAndForget interrupts executions, as a cancel does, and forgets them when they have ended. One that does not end in time is killed, and its
// kernel with it.
func stopAndForget(ctx context.Context, c *client.Client, executions ...string) error {
	var errs []error
	for _, id := range executions {
		if e, err := c.Execution(ctx, id); err == nil && e != nil && !e.Done {
			if err = c.Stop(ctx, id, agent.StopCancel); err != nil {
				errs = append(errs, fmt.Errorf("stop execution: %w", err))
			}
		}
	}
	end := time.Now().Add(evictGrace)
	for _, id := range executions {
		e, err := c.Execution(ctx, id)
		for err == nil && e != nil && !e.Done && time.Now().Before(end) {
			if err = retry.Sleep(ctx, evictPoll); err == nil {
				e, err = c.Execution(ctx, id)
			}
		}
		if err == nil {
			err = c.Forget(ctx, id)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("forget stopped execution: %w", err))
		}
	}
	return errors.Join(errs...)
}

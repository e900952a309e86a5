package execution

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/worker/retry"
)

// evictAfter is how long a job runs before its sandbox is searched for code that blocks it. Most jobs end earlier.
const evictAfter = 2 * time.Second

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

// evict stops code in a sandbox whose job has ended. The code of a job that is lost because its workers died has no worker that could
// stop it, and would block the next job of the sandbox.
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
		if err := c.Forget(ctx, e.ID); err != nil {
			errs = append(errs, fmt.Errorf("stop execution: %w", err))
		}
	}
	return errors.Join(errs...)
}

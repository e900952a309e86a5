package execution

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/worker/retry"
)

// evictAfter is how long a job runs before its sandbox is searched for code that holds it up. Most jobs are over by then.
const evictAfter = 2 * time.Second

// evictLater has the code of ended jobs looked for in the sandbox, unless it is stopped before.
func (x *Runner) evictLater(ctx context.Context, sandbox *farm.Sandbox, job string) (stop func()) {
	ctx, done := context.WithCancel(ctx)
	x.background.Go(func() {
		if retry.Sleep(ctx, evictAfter) != nil {
			return
		}
		if err := x.evict(ctx, sandbox, job); err != nil && ctx.Err() == nil {
			x.log.WarnContext(ctx, "code of ended jobs may hold up a sandbox", "job_id", job, "sandbox_id", sandbox.ID, "error", err)
		}
	})
	return done
}

// evict ends code in a sandbox whose job has ended: a job that was given up because its workers died has nobody who could
// end its code, and what is behind it in the sandbox's line would wait for that.
func (x *Runner) evict(ctx context.Context, sandbox *farm.Sandbox, but string) error {
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
		if e.Done || id == but || !farm.ValidID(farm.JobPrefix, id) {
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
		x.log.InfoContext(ctx, "code of an ended job is ended", "job_id", e.ID, "sandbox_id", sandbox.ID)
		if err := c.Forget(ctx, e.ID); err != nil {
			errs = append(errs, fmt.Errorf("end execution: %w", err))
		}
	}
	return errors.Join(errs...)
}

package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// evictAfter is how long a job runs before its sandbox is searched for code that holds it up. Most jobs are over by then.
const evictAfter = 2 * time.Second

// evictLater has the code of ended jobs looked for in the sandbox, unless it is stopped before.
func (w *Worker) evictLater(ctx context.Context, sandbox *farm.Sandbox, job string) (stop func()) {
	ctx, done := context.WithCancel(ctx)
	w.background.Go(func() {
		if sleep(ctx, evictAfter) != nil {
			return
		}
		if err := w.evict(ctx, sandbox, job); err != nil && ctx.Err() == nil {
			w.log.WarnContext(ctx, "code of ended jobs may hold up a sandbox", "job_id", job, "sandbox_id", sandbox.ID, "error", err)
		}
	})
	return done
}

// evict ends code in a sandbox whose job has ended: a job that was given up because its workers died has nobody who could
// end its code, and what is behind it in the sandbox's line would wait for that.
func (w *Worker) evict(ctx context.Context, sandbox *farm.Sandbox, but string) error {
	ctx, done := context.WithTimeout(ctx, commitTimeout)
	defer done()
	c, err := w.link(ctx, sandbox)
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
		job, err := w.store.Job(ctx, farm.Ref{Tenant: sandbox.Tenant, ID: id})
		switch {
		case farm.CodeOf(err) == farm.CodeNotFound:
		case err != nil:
			errs = append(errs, fmt.Errorf("read job of an execution: %w", err))
			continue
		case !job.State.Final():
			continue
		}
		w.log.InfoContext(ctx, "code of an ended job is ended", "job_id", e.ID, "sandbox_id", sandbox.ID)
		if err := c.Forget(ctx, e.ID); err != nil {
			errs = append(errs, fmt.Errorf("end execution: %w", err))
		}
	}
	return errors.Join(errs...)
}

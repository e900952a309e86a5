package worker

import (
	"context"
	"errors"
	"fmt"

	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/worker/retry"
)

// requeueUnplaced requeues a job for which this node has no room. A job that was cancelled meanwhile ends.
func (w *Worker) requeueUnplaced(ctx context.Context, j *activeJob) error {
	requeued, err := w.requeue(ctx, j)
	if requeued {
		w.metrics.requeued.Inc()
		w.log.DebugContext(ctx, "no room for the sandbox on this node; its job is requeued", "job_id", j.Job.ID, "sandbox_id", j.Job.SandboxID)
	}
	return err
}

// requeue returns a job to its queue; the attempt does not count as a crash. It reports whether the job waits there now.
func (w *Worker) requeue(ctx context.Context, j *activeJob) (requeued bool, err error) {
	err = w.retry(ctx, func(ctx context.Context) error { return w.dispatch.Requeue(ctx, j.Job.Ref(), j.Job.Attempt) })
	switch {
	case errors.Is(err, store.ErrCanceled):
		_, err = w.finish(ctx, j, w.executions.Canceled(ctx, j.Sandbox))
		return false, err
	case errors.Is(err, store.ErrFenced):
		return false, nil
	default:
		return err == nil, err
	}
}

// offerTakeover leaves a job that still runs in its sandbox to another worker at once, since this worker stops. Where that cannot
// be recorded, the job is taken over when this worker's heartbeat has expired, as after a crash.
func (w *Worker) offerTakeover(ctx context.Context, j *activeJob) error {
	ctx, done := retry.Detached(ctx)
	defer done()
	err := w.dispatch.OfferTakeover(ctx, j.Job.Ref(), j.Job.Attempt)
	switch {
	case errors.Is(err, store.ErrFenced):
		return nil
	case err != nil:
		return fmt.Errorf("offer job %s for takeover: %w", j.Job.ID, err)
	}
	w.log.InfoContext(ctx, "job left to another worker: this one stops", "job_id", j.Job.ID, "sandbox_id", j.Job.SandboxID, "attempt", j.Job.Attempt)
	return nil
}

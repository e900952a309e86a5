package worker

import (
	"context"
	"errors"
	"fmt"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/worker/execution"
	"github.com/sandfarm/sandfarm/worker/placement"
	"github.com/sandfarm/sandfarm/worker/retry"
)

// requeueUnplaced requeues a job for which this node has no room. A job that was cancelled meanwhile ends. A create whose pool member cannot
// grow here leaves the node, and the member is removed.
func (w *Worker) requeueUnplaced(ctx context.Context, j *activeJob) error {
	hasMember := j.Sandbox != nil && j.Sandbox.Pooled && j.Job.Queue == farm.NodeQueue(w.node.ID())
	if placement.ResumesSandbox(j.Claim) { // the queue of its node is never paused, as that of creates is
		if err := retry.Sleep(ctx, resumePause); err != nil {
			return w.requeueRunning(ctx, j)
		}
	}
	requeued, err := w.requeue(ctx, j, store.Requeue{Elsewhere: hasMember})
	if errors.Is(err, store.ErrFenced) {
		return nil
	}
	if requeued && hasMember {
		w.placement.RemoveClaimed(ctx, j.Sandbox)
	}
	if requeued {
		w.metrics.requeued.Inc()
		w.log.DebugContext(ctx, "no room for the sandbox on this node; its job is requeued", "job_id", j.Job.ID, "sandbox_id", j.Job.SandboxID)
	}
	return err
}

// requeue returns a job to its queue; the attempt does not count as a crash. It reports whether the job waits there now. A job that was
// cancelled meanwhile, or whose sandbox was closed, ends. ErrFenced if another attempt has the job.
func (w *Worker) requeue(ctx context.Context, j *activeJob, how store.Requeue) (requeued bool, err error) {
	how.Attempt = j.Job.Attempt
	err = w.retry(ctx, func(ctx context.Context) error { return w.store.Requeue(ctx, j.Job.Ref(), how) })
	switch {
	case errors.Is(err, store.ErrCanceled):
		_, err = w.finish(ctx, j, w.executions.Canceled(ctx, j.Sandbox))
		return false, err
	case errors.Is(err, store.ErrMove):
		_, err = w.finish(ctx, j, execution.Outcome{State: farm.JobCanceled, Err: execution.ClosedError()})
		return false, err
	default:
		return err == nil, err
	}
}

// requeueRunning gives a job that still runs in its sandbox to another worker at once, because this worker stops. If that cannot
// be recorded, the job is taken over when this worker's heartbeat has expired, as after a crash.
func (w *Worker) requeueRunning(ctx context.Context, j *activeJob) error {
	ctx, done := retry.Detached(ctx)
	defer done()
	err := w.store.Requeue(ctx, j.Job.Ref(), store.Requeue{Attempt: j.Job.Attempt, Begun: true})
	switch {
	case errors.Is(err, store.ErrFenced):
		return nil
	case err != nil:
		return fmt.Errorf("leave job %s to another worker: %w", j.Job.ID, err)
	}
	w.log.InfoContext(ctx, "job left to another worker: this one stops", "job_id", j.Job.ID, "sandbox_id", j.Job.SandboxID, "attempt", j.Job.Attempt)
	return nil
}

package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/worker/execution"
	"github.com/sandfarm/sandfarm/worker/node"
	"github.com/sandfarm/sandfarm/worker/placement"
	"github.com/sandfarm/sandfarm/worker/retry"
)

const (
	// checkpointTimeout bounds writing or reading a checkpoint with all tries, beyond the timeouts of the engine's calls.
	checkpointTimeout = 10 * time.Minute
	// endTimeout is how long the engine may take to notice the end of a container whose checkpoint failed: usually milliseconds, longer on a busy host.
	endTimeout = 5 * time.Second
	// resumePause is how long a job waits that found no room for its hibernated sandbox.
	resumePause = 500 * time.Millisecond
	// deadlineTries are how often an agent that has just been resumed is sent its deadline; after that the reconciler sends it.
	deadlineTries = 5
	deadlinePause = 100 * time.Millisecond
)

// hibernate is the handler of hibernate jobs: it stores the sandbox's memory on the node and ends its container. First the record says
// hibernated, so that nothing new begins and the end of the container is not taken for a loss. A worker that takes over can repeat every step.
func (w *Worker) hibernate(ctx context.Context, j *activeJob) (execution.Outcome, error) {
	box := j.Sandbox
	if err := w.node.CheckHibernates(box); err != nil {
		return execution.Outcome{}, err
	}
	if box.State != farm.SandboxHibernated {
		w.usage.Sample(ctx, box) // the last one: its counters end with the container
		// Its checkpoint counts as its limit: code may fill the memory until it is frozen, and the engine does not say what the checkpoint has.
		bytes := int64(box.Spec.Resources.MemoryMB) << 20
		if _, err := w.move(ctx, store.Move{
			Ref: box.Ref(), To: farm.SandboxHibernated, Checkpoint: bytes, Generation: box.Generation, Job: j.Job.ID, Attempt: j.Job.Attempt,
		}); err != nil {
			return execution.Outcome{}, retry.Cause(ctx, err)
		}
	}
	if err := w.awaitOthers(ctx, j); err != nil {
		return execution.Outcome{}, w.stayAwake(ctx, j, err)
	}
	if err := w.checkpoint(ctx, j); err != nil {
		return execution.Outcome{}, err
	}
	w.placement.ReleaseCapacity(ctx, box.Ref(), box.Generation)
	w.log.InfoContext(ctx, "sandbox hibernated", "sandbox_id", box.ID, "tenant", box.Tenant, "job_id", j.Job.ID)
	return execution.Outcome{State: farm.JobCompleted}, nil
}

// awaitOthers waits for the sandbox's jobs outside its FIFO: reads of files take a moment. It refuses to freeze one with a command in
// the background, whose output the farm would wait for.
func (w *Worker) awaitOthers(ctx context.Context, j *activeJob) error {
	for last := false; ; last = true {
		open, err := w.store.SandboxRoutes(ctx, j.Sandbox.Ref())
		if err != nil {
			return err
		}
		open = slices.DeleteFunc(open, func(r store.Route) bool {
			return r.Ref.ID == j.Job.ID || r.Kind == farm.KindClose || !r.Inline && !r.OutsideFIFO
		})
		if len(open) == 0 {
			return nil
		}
		for _, r := range open {
			if r.OutsideFIFO || last {
				return farm.Conflictf("Job %s (%s) runs in sandbox %s, so it cannot hibernate now. Wait for it or cancel it, then try again.", r.Ref.ID, r.Kind, j.Sandbox.ID)
			}
		}
		w.lifecycle.awaitEnd(ctx, open)
	}
}

// checkpoint makes the checkpoint in its turn, which ends the container. The engine finishes a checkpoint even if its caller disconnects, so once it has
// begun the caller always waits.
func (w *Worker) checkpoint(ctx context.Context, j *activeJob) error {
	leave, err := w.turn(ctx, j, placement.Hibernating(j.Sandbox.Tenant))
	if err != nil {
		return w.stayAwake(ctx, j, err)
	}
	defer leave()
	work, done := context.WithTimeout(context.WithoutCancel(ctx), checkpointTimeout)
	defer done()
	id := w.node.Container(j.Sandbox)
	c, err := w.engine.Inspect(work, id)
	if err == nil && c.Running {
		if err := w.node.SuspendDeadline(ctx, j.Sandbox); err != nil { // only a deadline that is moved meanwhile needs it
			w.log.WarnContext(ctx, "agent keeps the deadline that it knows while its sandbox hibernates", "sandbox_id", j.Sandbox.ID, "error", err)
		}
		w.node.Disconnect(j.Sandbox.ID)
		if err := w.stillHibernates(ctx, j); err != nil {
			return err
		}
		if err = w.node.Checkpoints().Checkpoint(work, id); err == nil {
			return nil
		}
		w.log.WarnContext(ctx, "sandbox was not stored", "sandbox_id", j.Sandbox.ID, "error", err)
		if w.runsOn(work, j.Sandbox) {
			return w.stayAwake(ctx, j, farm.Wrap(err, farm.CodeUnavailable, "The engine could not store the sandbox, which runs on. Try again later."))
		}
	}
	switch has, herr := w.node.Checkpoints().HasCheckpoint(work, id); {
	case has:
		return nil
	case herr == nil, farm.CodeOf(herr) == farm.CodeNotFound:
		return fmt.Errorf("%w: it ended while it was being hibernated, for which it needs free memory", node.ErrGone)
	default: // the reconciler finds out what became of it
		return herr
	}
}

// stillHibernates gives ErrFenced if another attempt has the job, or ended it: this worker was stalled, and the sandbox may have been resumed. The
// engine's call cannot be fenced, so this comes directly before it.
func (w *Worker) stillHibernates(ctx context.Context, j *activeJob) error {
	box := j.Sandbox
	_, err := w.move(ctx, store.Move{Ref: box.Ref(), To: farm.SandboxHibernated, Generation: box.Generation, Job: j.Job.ID, Attempt: j.Job.Attempt})
	if errors.Is(err, store.ErrMove) { // it is being closed, for which its state does not matter
		return nil
	}
	return retry.Cause(ctx, err)
}

// turn waits for the turn of a job's sandbox (see placement.Placer.Turn), until the job is cancelled: then the error is execution.ErrCanceled. A job that
// was taken over waits on: an earlier attempt may have stored the sandbox, or resumed it.
func (w *Worker) turn(ctx context.Context, j *activeJob, tenant string) (leave func(), err error) {
	if j.Job.Attempt == 1 {
		waits, stop := context.WithCancelCause(ctx)
		defer stop(nil)
		defer j.task().OnCancel(waits, func() { stop(execution.ErrCanceled) })()
		ctx = waits
	}
	return w.placement.Turn(ctx, tenant)
}

// runsOn reports whether a sandbox runs whose checkpoint failed. gVisor needs memory of the sandbox for the checkpoint: without it the kernel ends the
// sandbox, which the engine notices after the failure. So it runs if its agent answers, or if the engine says so for endTimeout.
func (w *Worker) runsOn(ctx context.Context, box *farm.Sandbox) bool {
	wait, done := context.WithTimeout(ctx, endTimeout)
	defer done()
	for {
		c, err := w.engine.Inspect(ctx, w.node.Container(box))
		if err != nil || !c.Running {
			return false
		}
		if w.node.SendDeadline(wait, box) == nil || retry.Sleep(wait, deadlinePause) != nil {
			return true
		}
	}
}

// stayAwake makes a sandbox ready again that does not hibernate, and returns the reason.
func (w *Worker) stayAwake(ctx context.Context, j *activeJob, reason error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx) // another worker continues
	}
	_, err := w.move(ctx, store.Move{Ref: j.Sandbox.Ref(), To: farm.SandboxReady, Generation: j.Sandbox.Generation, Job: j.Job.ID, Attempt: j.Job.Attempt})
	if err != nil {
		w.log.WarnContext(ctx, "sandbox that runs on is left to the reconciler", "sandbox_id", j.Sandbox.ID, "error", err)
	}
	w.giveDeadline(ctx, j.Sandbox)
	return reason
}

// resume brings the hibernated sandbox of a job back, which has room reserved. A worker that takes over can repeat every step.
func (w *Worker) resume(ctx context.Context, j *activeJob) error {
	box := j.Sandbox
	if err := w.restore(ctx, j); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		w.placement.ReleaseCapacity(ctx, box.Ref(), box.Generation)
		return err
	}
	to := farm.SandboxBusy
	if j.Job.Kind == farm.KindResume {
		to = farm.SandboxReady
	}
	moved, err := w.move(ctx, store.Move{Ref: box.Ref(), To: to, Touch: true, Generation: box.Generation, Job: j.Job.ID, Attempt: j.Job.Attempt})
	if err != nil {
		return retry.Cause(ctx, err)
	}
	j.Sandbox = moved
	w.log.InfoContext(ctx, "sandbox resumed", "sandbox_id", box.ID, "tenant", box.Tenant, "job_id", j.Job.ID)
	return nil
}

// restore starts the container from its checkpoint in its turn, gives the agent its deadline back, and removes the checkpoint.
func (w *Worker) restore(ctx context.Context, j *activeJob) error {
	box := j.Sandbox
	leave, err := w.turn(ctx, j, box.Tenant)
	if err != nil {
		return err
	}
	defer leave()
	work, done := context.WithTimeout(context.WithoutCancel(ctx), checkpointTimeout)
	defer done()
	id := w.node.Container(box)
	c, err := w.engine.Inspect(work, id)
	if err == nil && !c.Running {
		err = w.node.Checkpoints().Resume(work, id)
	}
	switch farm.CodeOf(err) {
	case "":
	case farm.CodeNotFound:
		return node.ErrGone
	case farm.CodeConflict:
		return fmt.Errorf("%w: it was hibernated, and its checkpoint is gone", node.ErrGone)
	default:
		w.log.ErrorContext(ctx, "sandbox was not resumed", "sandbox_id", box.ID, "error", err)
		return farm.Wrap(err, farm.CodeUnavailable, "The engine could not resume sandbox %s, which stays hibernated. Try again later.", box.ID)
	}
	leave() // an agent that does not answer keeps nobody waiting
	w.node.Disconnect(box.ID)
	w.giveDeadline(work, box)
	if err := w.node.Checkpoints().RemoveCheckpoint(work, id); err != nil {
		return fmt.Errorf("remove checkpoint: %w", err)
	}
	return nil
}

// giveDeadline gives an agent its deadline back. It may not answer at once.
func (w *Worker) giveDeadline(ctx context.Context, box *farm.Sandbox) {
	var err error
	for range deadlineTries {
		if err = w.node.SendDeadline(ctx, box); err == nil || retry.Sleep(ctx, deadlinePause) != nil {
			return
		}
	}
	w.log.WarnContext(ctx, "agent does not know its deadline yet", "sandbox_id", box.ID, "error", err)
}

package worker

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/queue"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/worker/execution"
	"github.com/sandfarm/sandfarm/worker/node"
	"github.com/sandfarm/sandfarm/worker/placement"
	"github.com/sandfarm/sandfarm/worker/retry"
)

// slotPause is after how long a job comes again whose tenant has as many slots of this worker as it may.
const slotPause = time.Second

// handle handles the task of a job. After an error the task is delivered again, and the record decides what happens.
func (w *Worker) handle(ctx context.Context, t queue.Task) (err error) {
	j := w.jobs.reserve(t.Ref)
	if j == nil {
		return nil // another handler of this worker has the job
	}
	defer w.jobs.remove(t.Ref.ID)
	take := w.store.Claim
	if j.crowding {
		take = w.store.ClaimUrgent
	}
	claim, err := take(ctx, t.Ref, w.id)
	switch {
	case errors.Is(err, store.ErrNotUrgent):
		return queue.Later{In: slotPause}
	case errors.Is(err, store.ErrNotClaimable), farm.CodeOf(err) == farm.CodeNotFound:
		return nil // finished already, or another worker has it
	case err != nil:
		return fmt.Errorf("claim job %s: %w", t.Ref.ID, err)
	}
	w.jobs.claimed(j, claim)
	w.metrics.claimed(claim.Job)
	ctx, end := w.trace(ctx, claim.Job)
	defer func() { end(err) }()
	// The work ends with the worker, not with the queue's own deadline: then another worker takes the job over.
	work, done := context.WithCancelCause(context.WithoutCancel(ctx))
	defer done(nil)
	defer context.AfterFunc(w.base, func() { done(node.ErrStopping) })() //nolint:contextcheck // the worker's stop ends the work

	var placed bool
	err = retry.Writes{}.Do(work, func(ctx context.Context) (err error) {
		placed, err = w.placement.Reserve(ctx, j.Claim)
		return err
	})
	if err == nil && !placed {
		return w.requeueUnplaced(work, j)
	}
	charged, memory := w.deps.Memory.With(work, j.Job.Tenant, 0)
	defer memory.Release() // when the result is stored
	var v execution.Outcome
	if err == nil {
		v, err = w.perform(charged, j)
	}
	if err != nil {
		if errors.Is(err, store.ErrFenced) {
			return err
		}
		if errors.Is(err, node.ErrStopping) || errors.Is(context.Cause(work), node.ErrStopping) {
			return w.requeueRunning(work, j)
		}
		if errors.Is(err, errEngineSilent) {
			return w.moveCreate(work, j)
		}
		cleanup := v.Cleanup
		v = w.failure(work, j, err)
		v.Cleanup = cleanup
	}
	committed, err := w.finish(work, j, v)
	if committed {
		w.executions.CleanUp(work, j.Sandbox, v)
	}
	return err
}

// perform does the job, and charges what it holds to the Hold of ctx. A panic becomes an error, so that the job ends.
func (w *Worker) perform(ctx context.Context, j *activeJob) (v execution.Outcome, err error) {
	defer func() {
		if p := recover(); p != nil {
			v, err = execution.Outcome{}, fmt.Errorf("%s job: panic: %v\n%s", j.Job.Kind, p, debug.Stack())
		}
	}()
	if j.Sandbox == nil {
		return execution.Outcome{}, farm.Conflictf("The sandbox is gone. Create a new one and send the job again.")
	}
	if err := w.retry(ctx, func(ctx context.Context) error { return w.store.LoadRequest(ctx, j.Claim) }); err != nil {
		return execution.Outcome{}, err
	}
	if j.Request.Execute != nil {
		j.cell = j.Request.Execute.Cell
	}
	if placement.ResumesSandbox(j.Claim) {
		if err := w.resume(ctx, j); err != nil {
			return execution.Outcome{}, err
		}
	}
	switch j.Job.Kind {
	case farm.KindHibernate:
		return w.hibernate(ctx, j)
	case farm.KindResume:
		return execution.Outcome{State: farm.JobCompleted}, nil
	case farm.KindCreate:
		return w.create(ctx, j)
	case farm.KindRun:
		return w.oneShot(ctx, j)
	case farm.KindExecute, farm.KindCommand, farm.KindInstall:
		return w.executions.Run(ctx, j.task(), j.Sandbox, nil)
	case farm.KindPackages:
		return w.executions.Packages(ctx, j.task())
	case farm.KindFile:
		return w.executions.File(ctx, j.task())
	case farm.KindInterrupt, farm.KindRestart:
		return w.executions.Kernel(ctx, j.task())
	case farm.KindClose:
		return w.close(ctx, j)
	default:
		return execution.Outcome{}, farm.Errorf(farm.CodeInvalid, "this farm does not support jobs of kind %s", j.Job.Kind)
	}
}

// failure turns an error into the outcome of the job.
func (w *Worker) failure(ctx context.Context, j *activeJob, err error) execution.Outcome {
	if errors.Is(err, execution.ErrCanceled) {
		return w.executions.Canceled(ctx, j.Sandbox)
	}
	if errors.Is(err, node.ErrGone) || errors.Is(err, execution.ErrProtocol) {
		if w.lifecycle.Closing(ctx, j.Sandbox) || w.lifecycle.closeExpired(ctx, j.Sandbox) {
			return execution.Outcome{State: farm.JobCanceled, Err: execution.ClosedError()}
		}
		if j.Job.Inline && w.lifecycle.hibernated(ctx, j.Sandbox) {
			return execution.Outcome{State: farm.JobFailed, Err: &farm.JobError{Code: farm.CodeConflict, Message: "The sandbox was hibernated meanwhile. Resume it, and send the job again."}}
		}
		w.lifecycle.Lose(ctx, j.Sandbox, j.Job.ID, err.Error())
		return execution.Outcome{State: farm.JobLost, Err: &farm.JobError{
			Code:    farm.CodeUnavailable,
			Message: fmt.Sprintf("The sandbox was lost while the job ran (%s). Create a new sandbox and send the job again.", err),
		}}
	}
	if code := farm.CodeOf(err); code == farm.CodeInternal {
		w.log.ErrorContext(ctx, "job failed", "job_id", j.Job.ID, "sandbox_id", j.Job.SandboxID, "kind", j.Job.Kind, "error", err)
	}
	return execution.Outcome{State: farm.JobFailed, Err: &farm.JobError{Code: farm.CodeOf(err), Message: farm.MessageOf(err)}}
}

// finish commits the outcome of a job, once: a worker whose attempt is fenced commits nothing. It waits for Redis until the worker
// stops; then another worker commits what the agent has kept. It does not wait for the object store longer than the uploads do.
func (w *Worker) finish(ctx context.Context, j *activeJob, v execution.Outcome) (committed bool, err error) {
	ctx, done := retry.Commit(ctx, w.base)
	defer done()
	f := store.Finish{
		Ref: j.Job.Ref(), Attempt: j.Job.Attempt, State: v.State, Result: v.Result, Error: v.Err, Events: v.Events, LastEvent: v.LastEvent, Token: rand.Text(),
		Timings: farm.Timings{RunMS: milliseconds(v.Run), UploadMS: milliseconds(v.Upload)},
	}
	if c := j.cell; c != nil && c.Stops && failed(v) { // before the next cell becomes runnable
		err = w.retry(ctx, func(ctx context.Context) error {
			return w.dispatch.AbortCells(ctx, farm.Ref{Tenant: j.Job.Tenant, ID: j.Job.SandboxID}, c.Session)
		})
		if err != nil {
			return false, fmt.Errorf("abort the cells behind job %s: %w", j.Job.ID, err)
		}
	}
	err = execution.Commit(&f, func(f store.Finish) error {
		return w.retry(ctx, func(ctx context.Context) error { return w.dispatch.Finish(ctx, f) })
	})
	v.State = f.State
	if errors.Is(err, store.ErrFenced) {
		w.log.InfoContext(ctx, "another worker has the job; the outcome here is dropped", "job_id", j.Job.ID, "attempt", j.Job.Attempt)
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("finish job %s: %w", j.Job.ID, err)
	}
	w.metrics.ended(j.Job, v)
	w.activity.add(w.now(), cmp.Or(j.Job.Queue, farm.NodeQueue(w.node.ID())), j.Job, v)
	trace.SpanFromContext(ctx).SetAttributes(attribute.String("sandfarm.state", string(v.State)))
	w.log.DebugContext(ctx, "job finished", "job_id", j.Job.ID, "kind", j.Job.Kind, "state", v.State, "sandbox_id", j.Job.SandboxID, "attempt", j.Job.Attempt)
	return true, nil
}

// failed reports whether the code of a job failed, or did not end.
func failed(v execution.Outcome) bool {
	return v.State != farm.JobCompleted || v.Result != nil && v.Result.Execute != nil && v.Result.Execute.Error != nil
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

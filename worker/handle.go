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

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/queue"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/worker/execution"
	"github.com/sandfarm/sandfarm/worker/node"
	"github.com/sandfarm/sandfarm/worker/placement"
	"github.com/sandfarm/sandfarm/worker/retry"
)

// handle handles the task of a job. After an error the task is delivered again, and the record decides what happens.
func (w *Worker) handle(ctx context.Context, t queue.Task) error {
	err := w.run(ctx, t)
	if errors.Is(err, errNoPlace) {
		return w.dispatch.PutBack(ctx, t.Ref)
	}
	return err
}

// run does the job of a task. errNoPlace if the job has to wait here for longer than it should.
func (w *Worker) run(ctx context.Context, t queue.Task) (err error) {
	j := w.jobs.reserve(t.Ref)
	if j == nil {
		return nil // another handler of this worker has the job
	}
	defer w.jobs.remove(t.Ref.ID)
	leave, err := w.enter(ctx, j, t)
	if err != nil {
		return err
	}
	defer leave()
	claim, err := w.store.Claim(ctx, t.Ref, w.id)
	switch {
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
			w.cleanUpEnded(work, j, v)
			return err
		}
		if errors.Is(err, node.ErrStopping) || errors.Is(context.Cause(work), node.ErrStopping) {
			return w.requeueRunning(work, j)
		}
		if errors.Is(err, errNoRoom) {
			return w.requeueFull(work, j, err)
		}
		if errors.Is(err, errEngineSilent) {
			return w.moveCreate(work, j)
		}
		cleanup := v.Cleanup
		v = w.failure(work, j, err)
		v.Cleanup = cleanup
	}
	committed, err := w.finish(budget.Without(charged), j, v) // what it stores is charged; it waits for a core alone
	switch {
	case committed:
		w.executions.CleanUp(work, j.Sandbox, v)
	case err == nil:
		w.cleanUpEnded(work, j, v)
	}
	return err
}

// cleanUpEnded cleans up after a job whose end this worker could not commit, if it has ended, as with its sandbox. Of one that another worker has, that
// worker needs what is staged.
func (w *Worker) cleanUpEnded(ctx context.Context, j *activeJob, v execution.Outcome) {
	read, done := retry.Detached(ctx)
	defer done()
	if job, err := w.store.Job(read, j.Job.Ref()); err == nil && job.State.Final() {
		w.executions.CleanUp(ctx, j.Sandbox, v)
	}
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

// oneShot is the handler of run jobs: it runs code in a new sandbox, and closes the sandbox after the job has ended.
func (w *Worker) oneShot(ctx context.Context, j *activeJob) (execution.Outcome, error) {
	sandbox := j.Sandbox
	var requested *execution.Installed
	if sandbox.State != farm.SandboxClosing {
		var err error
		if sandbox, requested, err = w.ready(ctx, j); err != nil {
			return execution.Outcome{}, w.abandon(ctx, j, err)
		}
	}
	v, err := w.oneShotIn(ctx, j, sandbox, requested)
	if err != nil {
		if errors.Is(err, store.ErrFenced) || errors.Is(err, node.ErrStopping) || errors.Is(context.Cause(ctx), node.ErrStopping) {
			return v, err // another worker continues in the sandbox
		}
		cleanup := v.Cleanup
		v = w.failure(ctx, j, err)
		v.Cleanup = cleanup
	}
	w.markClosing(ctx, sandbox)
	cleanup := v.Cleanup
	v.Cleanup = func(ctx context.Context) {
		w.closeBehind(ctx, sandbox)
		if cleanup != nil {
			cleanup(ctx)
		}
	}
	return v, nil
}

func (w *Worker) oneShotIn(ctx context.Context, j *activeJob, sandbox *farm.Sandbox, requested *execution.Installed) (execution.Outcome, error) {
	if err := w.executions.WriteInputs(ctx, j.task(), sandbox); err != nil {
		if ctx.Err() != nil {
			return execution.Outcome{}, context.Cause(ctx)
		}
		if gone, ok := w.node.Gone(ctx, sandbox); ok {
			return execution.Outcome{}, gone
		}
		return execution.Outcome{}, err
	}
	return w.executions.Run(ctx, j.task(), sandbox, requested)
}

// markClosing marks a one-shot sandbox as closing, so that the reconciler closes it if this worker does not.
func (w *Worker) markClosing(ctx context.Context, sandbox *farm.Sandbox) {
	ctx, done := retry.Detached(ctx)
	defer done()
	_, err := w.store.MoveSandbox(ctx, store.Move{Ref: sandbox.Ref(), To: farm.SandboxClosing, Generation: sandbox.Generation})
	if err != nil && !errors.Is(err, store.ErrMove) {
		w.log.WarnContext(ctx, "one-shot sandbox is left to the scheduler", "sandbox_id", sandbox.ID, "error", err)
	}
}

// closeBehind closes a one-shot sandbox after its job's outcome is committed.
func (w *Worker) closeBehind(ctx context.Context, sandbox *farm.Sandbox) {
	ctx, done := context.WithTimeout(ctx, time.Minute)
	defer done()
	if err := w.lifecycle.Dismantle(ctx, sandbox, "", farm.SandboxClosed, ""); err != nil {
		w.log.WarnContext(ctx, "one-shot sandbox is left to the reconciler", "sandbox_id", sandbox.ID, "error", err)
	}
}

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

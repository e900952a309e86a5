package worker

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/queue"
	"github.com/sandfarm/sandfarm/internal/store"
)

const (
	// commitTimeout bounds writes that must be made even when the job's own time is over.
	commitTimeout = 15 * time.Second
	// queueCallbacks is the queue of finished jobs whose callers are to be told.
	queueCallbacks = "callbacks"
)

// Reasons for which a job's context ends.
var (
	errStopping = errors.New("the worker is stopping")
	errCanceled = errors.New("the job was cancelled")
)

// verdict is how a job ended. The zero value is no verdict.
type verdict struct {
	state  farm.JobState
	result *farm.Result
	err    *farm.JobError
	run    time.Duration // in the sandbox
	upload time.Duration
	last   uint64 // number of the last event sent, see store.Finish

	// after tidies up once the end is committed, behind the answer; nil: nothing is to be done. Before the commit a
	// worker that takes over may need everything still.
	after func(context.Context)
}

// handle takes a task from the queue. An error means that it is to be delivered again: the record decides then.
func (w *Worker) handle(ctx context.Context, t queue.Task) (err error) {
	if t.Type == "callback" {
		if w.deps.Callback == nil {
			return nil
		}
		return w.deps.Callback(ctx, t.Ref)
	}
	if !w.runs.reserve(t.Ref.ID) {
		return nil // the handler that has it ends it
	}
	defer w.runs.release(t.Ref.ID)
	claim, err := w.store.Claim(ctx, t.Ref, w.id)
	switch {
	case errors.Is(err, store.ErrNotClaimable), farm.CodeOf(err) == farm.CodeNotFound:
		return nil // finished already, or another worker has it
	case err != nil:
		return fmt.Errorf("claim job %s: %w", t.Ref.ID, err)
	}
	r := w.runs.add(claim)
	w.seen.claimed(claim.Job)
	ctx, end := w.trace(ctx, claim.Job)
	defer func() { end(err) }()
	w.dispatch.EnqueueNext(ctx, claim.Unparked)
	// Work ends with the worker, not with the queue's own deadline: a job that goes on in its sandbox is taken over.
	work, done := context.WithCancelCause(context.WithoutCancel(ctx))
	defer done(nil)
	defer context.AfterFunc(w.base, func() { done(errStopping) })() //nolint:contextcheck // the worker's end is what ends the work

	placed, err := w.place(work, r)
	if err == nil && !placed {
		return w.giveBack(work, r)
	}
	var v verdict
	if err == nil {
		v, err = w.perform(work, r)
	}
	if err != nil {
		if errors.Is(err, store.ErrFenced) {
			return err
		}
		if errors.Is(err, errStopping) || errors.Is(context.Cause(work), errStopping) {
			return w.handOver(work, r)
		}
		if errors.Is(err, errSilent) {
			return w.sendElsewhere(work, r)
		}
		v = w.failure(work, r, err)
	}
	committed, err := w.finish(work, r, v)
	if committed && v.after != nil {
		detached := context.WithoutCancel(work)
		w.background.Go(func() { v.after(detached) })
	}
	return err
}

// perform does the job. A fault of ours that panics is the job's end like any other: nobody would end it otherwise.
func (w *Worker) perform(ctx context.Context, r *run) (v verdict, err error) {
	defer func() {
		if p := recover(); p != nil {
			v, err = verdict{}, fmt.Errorf("%s job: panic: %v\n%s", r.Job.Kind, p, debug.Stack())
		}
	}()
	if r.Sandbox == nil {
		return verdict{}, farm.Conflictf("The sandbox is gone. Create a new one and send the job again.")
	}
	switch r.Job.Kind {
	case farm.KindCreate:
		return w.create(ctx, r)
	case farm.KindRun:
		return w.oneShot(ctx, r)
	case farm.KindExecute, farm.KindCommand, farm.KindInstall:
		return w.runIn(ctx, r, r.Sandbox)
	case farm.KindPackages:
		return w.packages(ctx, r)
	case farm.KindFile:
		return w.file(ctx, r)
	case farm.KindInterrupt, farm.KindRestart:
		return w.control(ctx, r)
	case farm.KindClose:
		return w.close(ctx, r)
	default:
		return verdict{}, farm.Errorf(farm.CodeInvalid, "this farm cannot do jobs of kind %s", r.Job.Kind)
	}
}

// failure turns an error of ours into the job's end.
func (w *Worker) failure(ctx context.Context, r *run, err error) verdict {
	if errors.Is(err, errCanceled) {
		return w.canceled(ctx, r.Sandbox)
	}
	if errors.Is(err, errGone) || errors.Is(err, errHostile) {
		if w.closing(ctx, r.Sandbox) || w.overdue(ctx, r.Sandbox) {
			return verdict{state: farm.JobCanceled, err: underClose()}
		}
		w.lose(ctx, r.Sandbox, r.Job.ID, err.Error())
		return verdict{state: farm.JobLost, err: &farm.JobError{
			Code:    farm.CodeUnavailable,
			Message: fmt.Sprintf("The sandbox was lost while the job ran (%s). Create a new sandbox and send the job again.", err),
		}}
	}
	if code := farm.CodeOf(err); code == farm.CodeInternal {
		w.log.ErrorContext(ctx, "job failed", "job_id", r.Job.ID, "sandbox_id", r.Job.SandboxID, "kind", r.Job.Kind, "error", err)
	}
	return verdict{state: farm.JobFailed, err: &farm.JobError{Code: farm.CodeOf(err), Message: farm.MessageOf(err)}}
}

// finish commits the job's end, once: a worker whose fence is old commits nothing.
func (w *Worker) finish(ctx context.Context, r *run, v verdict) (committed bool, err error) {
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout+w.cfg.UploadRetry)
	defer done()
	f := store.Finish{
		Ref: r.Job.Ref(), Attempt: r.Job.Attempt, State: v.state, Result: v.result, Error: v.err, LastEvent: v.last,
		Timings: farm.Timings{RunMS: milliseconds(v.run), UploadMS: milliseconds(v.upload)},
	}
	err = w.persist(ctx, func(ctx context.Context) error { return w.dispatch.Finish(ctx, f) })
	if errors.Is(err, store.ErrFenced) {
		w.log.InfoContext(ctx, "another worker has the job; its end here is dropped", "job_id", r.Job.ID, "attempt", r.Job.Attempt)
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("finish job %s: %w", r.Job.ID, err)
	}
	w.seen.ended(r.Job, v)
	trace.SpanFromContext(ctx).SetAttributes(attribute.String("sandfarm.state", string(v.state)))
	w.log.DebugContext(ctx, "job finished", "job_id", r.Job.ID, "kind", r.Job.Kind, "state", v.state, "sandbox_id", r.Job.SandboxID, "attempt", r.Job.Attempt)
	return true, nil
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

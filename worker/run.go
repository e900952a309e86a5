package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/tracing"
)

// runIn executes code or commands in a sandbox that exists, and collects what they leave.
func (w *Worker) runIn(ctx context.Context, r *run, sandbox *farm.Sandbox) (verdict, error) {
	e := &execution{job: r.Job, request: r.Request, sandbox: sandbox, cancel: r.cancel}
	if background(r.Request) {
		e.started = func(ctx context.Context) { w.leave(ctx, r) }
	}
	needed, err := w.installNeeded(ctx, r, sandbox)
	if err != nil {
		return verdict{}, explain(ctx, err)
	}
	defer w.evictLater(ctx, sandbox, r.Job.ID)()
	began := time.Now()
	if err := w.execute(ctx, e); err != nil {
		err = explain(ctx, err)
		w.halt(ctx, e, err)
		return verdict{}, err
	}
	v := verdict{state: e.collect.state(), run: time.Since(began), last: e.collect.seq + 1}
	if ms := e.collect.outcome.RunMS; ms > 0 && ms < milliseconds(v.run) {
		v.run = time.Duration(ms * float64(time.Millisecond))
	}
	if v.state == farm.JobCanceled {
		v.err = w.canceled(ctx, sandbox).err
	}
	began = time.Now()
	tracing.Past(ctx, "run", began.Add(-v.run), began) // as the agent measured it
	kept, stored := tracing.Start(ctx, "collect", trace.SpanKindInternal)
	artifacts, err := w.keep(kept, e)
	stored(err)
	if err != nil {
		if ctx.Err() != nil {
			return verdict{}, context.Cause(ctx)
		}
		if errors.Is(err, errHostile) {
			return verdict{}, err
		}
		v.state, v.err = farm.JobFailed, w.unstored(ctx, r, sandbox, err)
		w.log.ErrorContext(ctx, "artifacts were not stored", "job_id", r.Job.ID, "error", err)
	}
	v.upload = time.Since(began)
	v.result = e.collect.result()
	v.result.Artifacts = artifacts
	needed.addTo(v.result)
	v.after = func(ctx context.Context) {
		w.forget(ctx, e)
		if needed != nil && !sandbox.OneShot {
			w.forgetInstalls(ctx, r.Job.ID, sandbox)
		}
	}
	return v, nil
}

// unstored says why what the code left could not be kept. Its output is kept all the same.
func (w *Worker) unstored(ctx context.Context, r *run, sandbox *farm.Sandbox, err error) *farm.JobError {
	if errors.Is(err, errGone) {
		if w.closing(ctx, sandbox) {
			return &farm.JobError{Code: farm.CodeConflict, Message: "The code ran, but the sandbox was closed before its files were stored."}
		}
		w.lose(ctx, sandbox, r.Job.ID, err.Error())
		return &farm.JobError{Code: farm.CodeUnavailable, Message: fmt.Sprintf("The code ran, but the sandbox was lost before its files were stored (%s). Create a new sandbox and send the job again.", err)}
	}
	reason := "the object store does not answer"
	if farm.CodeOf(err) != farm.CodeUnavailable {
		reason = "the log of the worker says why"
	}
	return &farm.JobError{Code: farm.CodeOf(err), Message: "The code ran, but its files could not be stored: " + reason + ". They are still in the workspace."}
}

// halt ends the code of a job that fails although the code may run: what comes next in its context must not wait for it.
// A job that another worker has, or will have, is left alone, and so is a sandbox that is gone.
func (w *Worker) halt(ctx context.Context, e *execution, err error) {
	if errors.Is(err, errGone) || errors.Is(err, errHostile) || errors.Is(err, store.ErrFenced) ||
		errors.Is(err, errStopping) || errors.Is(context.Cause(ctx), errStopping) {
		return
	}
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer done()
	c, err := w.link(ctx, e.sandbox)
	if err == nil {
		err = c.Forget(ctx, e.job.ID)
	}
	if err != nil {
		w.log.WarnContext(ctx, "code of a failed job may run on until its timeout", "job_id", e.job.ID, "sandbox_id", e.sandbox.ID, "error", err)
	}
}

// explain turns the reason for which an execution could not be followed into the job's.
func explain(ctx context.Context, err error) error {
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return fmt.Errorf("%w: it did not end the code within %s after its timeout", errGone, overrun)
	}
	return err
}

// keep stores the artifacts of an execution: bytes, then records, then their events.
func (w *Worker) keep(ctx context.Context, e *execution) ([]farm.Artifact, error) {
	artifacts, err := w.upload(ctx, e)
	if err != nil || len(artifacts) == 0 {
		return nil, err
	}
	if err := w.persist(ctx, func(ctx context.Context) error { return w.store.AddArtifacts(ctx, artifacts) }); err != nil {
		return nil, fmt.Errorf("record artifacts: %w", err)
	}
	events := make([]farm.Event, 0, len(artifacts))
	for i := range artifacts {
		events = append(events, farm.Event{
			ID: fmt.Sprintf("%d-%d", e.collect.seq+1, i+1), Name: farm.EventArtifact, Artifact: &artifacts[i],
		})
	}
	if err := w.persist(ctx, func(ctx context.Context) error { return w.store.AppendEvents(ctx, e.job.Ref(), events) }); err != nil {
		return nil, fmt.Errorf("send artifact events: %w", err)
	}
	return artifacts, nil
}

// leave lets the jobs behind a background command run while it goes on.
func (w *Worker) leave(ctx context.Context, r *run) {
	err := w.persist(ctx, func(ctx context.Context) error { return w.dispatch.LeaveFIFO(ctx, r.Job.Ref(), r.Job.Attempt) })
	if err != nil {
		w.log.WarnContext(ctx, "background command still holds its sandbox's line", "job_id", r.Job.ID, "error", err)
	}
}

// forget lets the agent and the store drop what only a takeover would have needed.
func (w *Worker) forget(ctx context.Context, e *execution) {
	ctx, done := context.WithTimeout(ctx, commitTimeout)
	defer done()
	if !e.sandbox.OneShot { // that goes as a whole
		if c, err := w.link(ctx, e.sandbox); err == nil {
			_ = c.Forget(ctx, e.job.ID) // the agent drops old ones by itself as well
		}
	}
	e.staged.drop(ctx)
}

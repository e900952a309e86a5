package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// runIn executes code or commands in a sandbox that exists, and collects what they leave.
func (w *Worker) runIn(ctx context.Context, r *run, sandbox *farm.Sandbox) (verdict, error) {
	e := &execution{job: r.Job, request: r.Request, sandbox: sandbox, cancel: r.cancel}
	if background(r.Request) {
		e.started = func(ctx context.Context) { w.leave(ctx, r) }
	}
	began := time.Now()
	if err := w.execute(ctx, e); err != nil {
		return verdict{}, w.explain(ctx, e, err)
	}
	v := verdict{state: e.collect.state(), run: time.Since(began), last: e.collect.seq + 1}
	if v.run > time.Duration(e.collect.outcome.RunMS*float64(time.Millisecond)) && e.collect.outcome.RunMS > 0 {
		v.run = time.Duration(e.collect.outcome.RunMS * float64(time.Millisecond))
	}
	began = time.Now()
	artifacts, err := w.keep(ctx, e)
	if err != nil {
		if ctx.Err() != nil {
			return verdict{}, context.Cause(ctx)
		}
		v.state = farm.JobFailed
		v.err = &farm.JobError{Code: farm.CodeOf(err), Message: "The code ran, but its files could not be stored: the object store does not answer. They are still in the workspace."}
		w.log.ErrorContext(ctx, "artifacts were not stored", "job_id", r.Job.ID, "error", err)
	}
	v.upload = time.Since(began)
	v.result = e.collect.result()
	v.result.Artifacts = artifacts
	w.forget(ctx, e)
	return v, nil
}

// explain turns the reason for which an execution could not be followed into the job's.
func (w *Worker) explain(ctx context.Context, e *execution, err error) error {
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
	err := w.persist(ctx, func(ctx context.Context) error { return w.dispatch.Leave(ctx, r.Job.Ref(), r.Job.Attempt) })
	if err != nil {
		w.log.WarnContext(ctx, "background command still holds its sandbox's line", "job_id", r.Job.ID, "error", err)
	}
}

// forget lets the agent and the store drop what only a takeover would have needed. It happens behind the answer.
func (w *Worker) forget(ctx context.Context, e *execution) {
	detached := context.WithoutCancel(ctx)
	w.background.Go(func() {
		ctx, done := context.WithTimeout(detached, commitTimeout)
		defer done()
		if w.awaitFinal(ctx, e.job.Ref()) {
			if c, err := w.link(ctx, e.sandbox); err == nil {
				_ = c.Forget(ctx, e.job.ID) // the agent drops old ones by itself as well
			}
			e.staged.drop(ctx)
		}
	})
}

// awaitFinal waits until the job's end is committed: before that a takeover may still need what is staged.
func (w *Worker) awaitFinal(ctx context.Context, ref farm.Ref) bool {
	for {
		job, err := w.store.Job(ctx, ref)
		if err == nil && job.State.Final() {
			return true
		}
		if sleep(ctx, 200*time.Millisecond) != nil {
			return false
		}
	}
}

package worker

import (
	"context"
	"errors"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/worker/execution"
	"github.com/sandfarm/sandfarm/worker/node"
	"github.com/sandfarm/sandfarm/worker/retry"
)

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

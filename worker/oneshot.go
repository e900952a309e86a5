package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// oneShot runs code in a fresh sandbox and closes it afterwards, behind the answer.
func (w *Worker) oneShot(ctx context.Context, r *run) (verdict, error) {
	sandbox := r.Sandbox
	var asked *installed
	if sandbox.State != farm.SandboxClosing {
		var err error
		if sandbox, asked, err = w.ready(ctx, r); err != nil {
			return verdict{}, w.abandon(ctx, r, err)
		}
	}
	v, err := w.oneShotIn(ctx, r, sandbox)
	asked.addTo(v.result)
	if err != nil {
		if errors.Is(err, store.ErrFenced) || errors.Is(err, errStopping) || errors.Is(context.Cause(ctx), errStopping) {
			return v, err // another worker goes on in the sandbox
		}
		v = w.failure(ctx, r, err)
	}
	w.markClosing(ctx, sandbox)
	tidy := v.after
	v.after = func(ctx context.Context) {
		w.closeBehind(ctx, sandbox)
		if tidy != nil {
			tidy(ctx)
		}
	}
	return v, nil
}

func (w *Worker) oneShotIn(ctx context.Context, r *run, sandbox *farm.Sandbox) (verdict, error) {
	if err := w.putInputs(ctx, r, sandbox); err != nil {
		if ctx.Err() != nil {
			return verdict{}, context.Cause(ctx)
		}
		if gone, ok := w.gone(ctx, sandbox); ok {
			return verdict{}, gone
		}
		return verdict{}, err
	}
	return w.runIn(ctx, r, sandbox)
}

// putInputs writes the files that came with a request. Where the worker before has begun the code already, they stay as
// they are: the code may have changed them.
func (w *Worker) putInputs(ctx context.Context, r *run, sandbox *farm.Sandbox) error {
	if len(r.Request.Files) == 0 {
		return nil
	}
	if r.Job.Attempt > 1 {
		c, err := w.link(ctx, sandbox)
		if err != nil {
			return err
		}
		list, err := c.Executions(ctx)
		if err != nil {
			return fmt.Errorf("list executions: %w", err)
		}
		if slices.ContainsFunc(list, func(e agent.Execution) bool { return e.ID == r.Job.ID }) {
			return nil
		}
	}
	for _, f := range r.Request.Files {
		if err := w.putInput(ctx, sandbox, f); err != nil {
			return fmt.Errorf("write %s: %w", f.Path, err)
		}
	}
	return nil
}

// putInput writes one file that came with a request.
func (w *Worker) putInput(ctx context.Context, sandbox *farm.Sandbox, f farm.InputFile) error {
	c, err := w.link(ctx, sandbox)
	if err != nil {
		return err
	}
	if f.Staged == "" {
		_, err = c.Write(ctx, f.Path, bytes.NewReader(f.Content))
		return err
	}
	r, _, err := w.blobs.Get(ctx, f.Staged, 0, 0)
	if err != nil {
		return fmt.Errorf("read upload: %w", err)
	}
	_, err = c.Write(ctx, f.Path, r)
	return errors.Join(err, r.Close())
}

// markClosing writes down that a one-shot sandbox is at its end, so that the reconciler closes it if this worker does not.
func (w *Worker) markClosing(ctx context.Context, sandbox *farm.Sandbox) {
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer done()
	_, err := w.store.MoveSandbox(ctx, store.Move{Ref: ref(sandbox), To: farm.SandboxClosing})
	if err != nil && !errors.Is(err, store.ErrMove) {
		w.log.WarnContext(ctx, "one-shot sandbox is left to the scheduler", "sandbox_id", sandbox.ID, "error", err)
	}
}

// closeBehind closes a one-shot sandbox whose job's end is committed.
func (w *Worker) closeBehind(ctx context.Context, sandbox *farm.Sandbox) {
	ctx, done := context.WithTimeout(ctx, time.Minute)
	defer done()
	if err := w.dismantle(ctx, sandbox, "", farm.SandboxClosed, ""); err != nil {
		w.log.WarnContext(ctx, "one-shot sandbox is left to the reconciler", "sandbox_id", sandbox.ID, "error", err)
	}
}

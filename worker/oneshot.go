package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// oneShot runs code in a fresh sandbox and closes it afterwards, behind the answer.
func (w *Worker) oneShot(ctx context.Context, r *run) (verdict, error) {
	sandbox := r.Sandbox
	if sandbox.State != farm.SandboxClosing {
		var err error
		if sandbox, err = w.ready(ctx, r); err != nil {
			return verdict{}, w.abandon(ctx, r, err)
		}
	}
	v, err := w.oneShotIn(ctx, r, sandbox)
	if err != nil && errors.Is(context.Cause(ctx), errStopping) {
		return v, err
	}
	if err != nil {
		v = w.failure(ctx, r, err)
	}
	w.closeBehind(ctx, sandbox)
	return v, nil
}

func (w *Worker) oneShotIn(ctx context.Context, r *run, sandbox *farm.Sandbox) (verdict, error) {
	for _, f := range r.Request.Files {
		if err := w.putInput(ctx, sandbox, f); err != nil {
			return verdict{}, fmt.Errorf("write %s: %w", f.Path, err)
		}
	}
	return w.runIn(ctx, r, sandbox)
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

// closeBehind closes a one-shot sandbox. The record says so at once, so that nothing new is sent to it.
func (w *Worker) closeBehind(ctx context.Context, sandbox *farm.Sandbox) {
	detached := context.WithoutCancel(ctx)
	mctx, done := context.WithTimeout(detached, commitTimeout)
	defer done()
	if _, err := w.store.MoveSandbox(mctx, store.Move{Ref: ref(sandbox), To: farm.SandboxClosing}); err != nil && !errors.Is(err, store.ErrMove) {
		w.log.WarnContext(ctx, "one-shot sandbox is left to the scheduler", "sandbox_id", sandbox.ID, "error", err)
		return
	}
	w.background.Go(func() {
		ctx, done := context.WithTimeout(detached, time.Minute)
		defer done()
		if err := w.dismantle(ctx, sandbox, "", farm.SandboxClosed, ""); err != nil {
			w.log.WarnContext(ctx, "one-shot sandbox is left to the reconciler", "sandbox_id", sandbox.ID, "error", err)
		}
	})
}

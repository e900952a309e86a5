package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// startingPatience is how long a record may say starting before a missing container means anything.
const startingPatience = 2 * time.Minute

// reconcile brings the engine's containers and the records together: containers of no open sandbox are removed, open
// sandboxes whose container is gone are lost. It does nothing while Redis or the engine do not answer.
func (w *Worker) reconcile(ctx context.Context) error {
	containers, err := w.engine.List(ctx)
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	running := map[string]bool{}
	for _, c := range containers {
		id := c.SandboxID
		keep, err := w.belongs(ctx, farm.Ref{Tenant: c.Tenant, ID: id}, c.CreatedAt)
		if err != nil {
			return err
		}
		if keep {
			running[id] = c.Running
			continue
		}
		w.log.InfoContext(ctx, "container of no open sandbox is removed", "sandbox_id", id)
		if err := w.engine.Remove(ctx, c.ID); err != nil {
			return fmt.Errorf("remove container: %w", err)
		}
	}
	return w.findLost(ctx, running)
}

// belongs reports whether a container's sandbox is open.
func (w *Worker) belongs(ctx context.Context, r farm.Ref, created time.Time) (bool, error) {
	s, err := w.store.Sandbox(ctx, r)
	switch {
	case farm.CodeOf(err) == farm.CodeNotFound:
		return false, nil
	case err != nil:
		return false, fmt.Errorf("read sandbox: %w", err)
	}
	if s.State == farm.SandboxClosing { // its close job removes it; one that was never finished is helped along
		return time.Since(created) < time.Minute || w.runs.get(s.ID) != nil || !w.oneShotOver(ctx, s), nil
	}
	return !s.State.Final(), nil
}

// oneShotOver reports whether a closing sandbox is a one-shot whose worker died between the answer and the clean-up.
func (w *Worker) oneShotOver(ctx context.Context, s *farm.Sandbox) bool {
	if !s.OneShot {
		return false
	}
	open, err := w.store.Drain(ctx, ref(s))
	return err == nil && len(open) == 0
}

func (w *Worker) findLost(ctx context.Context, running map[string]bool) error {
	tenants, err := w.store.Tenants(ctx)
	if err != nil {
		return fmt.Errorf("list tenants: %w", err)
	}
	var errs []error
	for _, tenant := range tenants {
		open, err := w.store.OpenSandboxes(ctx, tenant)
		if err != nil {
			errs = append(errs, fmt.Errorf("list open sandboxes: %w", err))
			continue
		}
		for _, s := range open {
			if s.Node != w.node || running[s.ID] {
				continue
			}
			if err := w.checkLost(ctx, s); err != nil {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// checkLost looks again, now that the record was read after the containers were listed.
func (w *Worker) checkLost(ctx context.Context, s *farm.Sandbox) error {
	switch s.State {
	case farm.SandboxReady, farm.SandboxBusy:
		if reason, ok := w.gone(ctx, s); ok {
			w.lose(ctx, s, reason.Error())
		}
	case farm.SandboxClosing:
		if s.OneShot && w.oneShotOver(ctx, s) && time.Since(s.CreatedAt) > startingPatience {
			return w.dismantle(ctx, s, "", farm.SandboxClosed, "")
		}
	default:
	}
	return nil
}

package reconcile

import (
	"context"
	"errors"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// MarkNodeLost marks every open sandbox of this node as lost that has been handed to its owner. A sandbox that a job still
// starts is moved by that job. The engine is not asked: what is left on it is removed when it answers again.
func (r *Reconciler) MarkNodeLost(ctx context.Context) error {
	open, err := r.store.OpenOnNode(ctx, r.node.ID())
	if err != nil {
		return err
	}
	var errs []error
	for _, s := range open {
		if s.State == farm.SandboxQueued || s.State == farm.SandboxStarting {
			if starting, err := r.hasLifecycleJob(ctx, s); err != nil || starting {
				errs = append(errs, err)
				continue
			}
		}
		r.sandboxes.MarkLost(ctx, s, "", "the container engine of its node does not answer")
	}
	return errors.Join(errs...)
}

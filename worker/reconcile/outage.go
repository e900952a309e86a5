package reconcile

import (
	"context"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// MarkNodeLost marks every open sandbox of this node as lost that has been handed to its owner. A sandbox that a job still
// starts is moved by that job. The engine is not asked: what is left on it is removed when it answers again.
func (r *Reconciler) MarkNodeLost(ctx context.Context) error {
	return r.eachOpen(ctx, func(s *farm.Sandbox) error {
		if s.Node != r.node.ID() {
			return nil
		}
		if s.State == farm.SandboxQueued || s.State == farm.SandboxStarting {
			if starting, err := r.hasLifecycleJob(ctx, s); err != nil || starting {
				return err
			}
		}
		r.sandboxes.MarkLost(ctx, s, "", "the container engine of its node does not answer")
		return nil
	})
}

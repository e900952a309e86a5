package reconcile

import (
	"context"
	"fmt"

	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/worker/node"
)

// restore writes the record of a container's sandbox again, if the records were lost, and reports whether the sandbox is open. Redis lost
// them if there is no record although the deadline of the sandbox has not passed: the record of a sandbox that ended without its container
// is kept until then (store.Move.Removed). So a Redis that was restored from an older snapshot is noticed like one that was wiped.
func (r *Reconciler) restore(ctx context.Context, c engine.Container) (bool, error) {
	s := node.RecordOf(c)
	if s == nil || !r.deps.Now().Before(s.ExpiresAt) {
		return false, nil
	}
	if !c.Running {
		has, err := r.engine.HasCheckpoint(ctx, c.ID)
		if err != nil || !has {
			return false, ignoreNotFound(err)
		}
		s.State = farm.SandboxHibernated
	} else if _, gone := r.node.Gone(ctx, s); gone { // since the list: the sandbox was closed, and its record is kept for a short time only
		return false, nil
	}
	s.LastUsedAt = r.deps.Now()
	restored, err := r.store.RestoreSandbox(ctx, s)
	if err != nil {
		return false, fmt.Errorf("restore sandbox %s: %w", s.ID, err)
	}
	if restored {
		r.log.WarnContext(ctx, "Redis has lost the record of a sandbox; it is restored from the container", "sandbox_id", s.ID, "tenant", s.Tenant)
		return true, nil
	}
	now, err := r.record(ctx, c) // another worker of the engine was first, or the sandbox is being closed
	return isOpen(c, now), err
}

// ignoreNotFound returns an error unless it says that a container is gone.
func ignoreNotFound(err error) error {
	if farm.CodeOf(err) == farm.CodeNotFound {
		return nil
	}
	return err
}

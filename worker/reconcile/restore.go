package reconcile

import (
	"context"
	"fmt"

	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/worker/node"
)

// RestoreAll restores the missing records of running containers of this engine. It is for the start of a farm
// whose Redis keeps no data: on other farms a container without a record is an orphan.
func (r *Reconciler) RestoreAll(ctx context.Context) error {
	containers, err := r.engine.List(ctx)
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	for _, c := range containers {
		if node.IsPoolMember(c) {
			if c, err = r.withNote(ctx, c); farm.CodeOf(err) == farm.CodeNotFound {
				continue
			}
			if err != nil {
				return err
			}
		}
		if _, err := r.restore(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// restore restores the record of a container's sandbox, if it runs and its deadline has not passed; otherwise the container is
// removed as an orphan.
func (r *Reconciler) restore(ctx context.Context, c engine.Container) (restored bool, err error) {
	s := node.RecordOf(c)
	if s == nil || !c.Running || !r.deps.Now().Before(s.ExpiresAt) {
		return false, nil
	}
	s.LastUsedAt = r.deps.Now()
	if restored, err = r.store.RestoreSandbox(ctx, s); err != nil {
		return false, fmt.Errorf("restore sandbox %s: %w", s.ID, err)
	}
	if restored {
		r.log.InfoContext(ctx, "sandbox restored from its container", "sandbox_id", s.ID, "tenant", s.Tenant)
	}
	return restored, nil
}

// restoreLost restores the record of a container's sandbox when the records were lost, and reports whether it is open. Another
// worker of the engine may have been first: then the record that it wrote is used.
func (r *Reconciler) restoreLost(ctx context.Context, c engine.Container) (bool, error) {
	made := c.Labels[node.LabelEpoch]
	if made == "" {
		return false, nil
	}
	// The epoch is read again, since the records may have been lost a moment ago. It is not kept in the Node, so that the next
	// heartbeat sees the change too.
	if now, err := r.store.Epoch(ctx); err != nil || now == made {
		return false, err
	}
	if restored, err := r.restore(ctx, c); restored || err != nil {
		return restored, err
	}
	return r.isOpen(ctx, c)
}

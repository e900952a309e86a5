package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/worker/node"
)

// startingGrace is how long a sandbox may be starting without a job that starts it.
const startingGrace = 2 * time.Minute

// Run brings the engine's containers and the records together: orphaned containers are removed, open sandboxes whose container
// is gone are marked as lost, and closing sandboxes that no job closes are closed. It changes nothing while Redis or the engine
// do not answer. An error with one sandbox does not stop the others; the errors are joined.
func (r *Reconciler) Run(ctx context.Context) error {
	pool, err := r.listNotes(ctx)
	if err != nil {
		return err
	}
	containers, err := r.engine.List(ctx)
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	if err := pool.readMembers(ctx, r.placement); err != nil {
		return err
	}
	var errs []error
	running, contained := map[string]bool{}, map[string]bool{}
	for _, c := range containers {
		id := c.SandboxID
		keep, err := r.keeps(ctx, pool, c)
		if err != nil {
			return err
		}
		if keep {
			running[id], contained[id] = c.Running, true
			continue
		}
		r.log.InfoContext(ctx, "orphaned container is removed", "sandbox_id", id)
		if err := r.engine.Remove(ctx, c.ID); err != nil {
			errs = append(errs, fmt.Errorf("remove container: %w", err))
		}
	}
	r.contained.Set(float64(len(contained) - pool.idle))
	open, err := r.reconcileRecords(ctx, running, contained)
	r.node.SyncDeadlines(open, containers)
	r.deps.Usage.SampleAll(ctx, open)
	return errors.Join(append(errs, err, r.reconcilePool(ctx, pool, contained), r.placement.ReconcileReservations(ctx, open, contained), r.placement.ReconcileGPUs(ctx))...)
}

// keeps reports whether a container stays.
func (r *Reconciler) keeps(ctx context.Context, pool *poolView, c engine.Container) (bool, error) {
	if node.IsPoolMember(c) {
		return r.keepsMember(ctx, pool, c)
	}
	return r.keepsSandbox(ctx, c)
}

// keepsSandbox reports whether a container's sandbox is open. A sandbox whose record was lost, or is of an earlier generation, is restored.
func (r *Reconciler) keepsSandbox(ctx context.Context, c engine.Container) (bool, error) {
	s, err := r.record(ctx, c)
	if err != nil {
		return false, err
	}
	if s == nil || node.Newer(c, s) {
		return r.restore(ctx, c)
	}
	return isOpen(c, s), nil
}

// record reads the record of a container's sandbox; nil if there is none.
func (r *Reconciler) record(ctx context.Context, c engine.Container) (*farm.Sandbox, error) {
	s, err := r.store.Sandbox(ctx, farm.Ref{Tenant: c.Tenant, ID: c.SandboxID})
	if farm.CodeOf(err) == farm.CodeNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read sandbox: %w", err)
	}
	return s, nil
}

// isOpen reports whether a container's sandbox is open and of the container's generation.
func isOpen(c engine.Container, s *farm.Sandbox) bool {
	return s != nil && !s.State.Final() && node.Belongs(c, s)
}

// reconcileRecords checks every open sandbox of this node, and returns those whose container runs. From contained it takes the hibernated
// ones, which have nothing reserved.
func (r *Reconciler) reconcileRecords(ctx context.Context, running, contained map[string]bool) (here []*farm.Sandbox, err error) {
	open, err := r.store.OpenOnNode(ctx, r.node.ID())
	if err != nil {
		return nil, fmt.Errorf("list open sandboxes of the node: %w", err)
	}
	var errs []error
	for _, s := range open {
		if running[s.ID] {
			here = append(here, s)
		}
		if s.State == farm.SandboxHibernated {
			err = r.reconcileHibernated(ctx, s, running[s.ID], contained[s.ID])
			if !running[s.ID] {
				delete(contained, s.ID)
			}
		} else {
			err = r.reconcileRecord(ctx, s, running[s.ID])
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("reconcile sandbox %s: %w", s.ID, err))
		}
	}
	return here, errors.Join(errs...)
}

// reconcileRecord checks one open sandbox. Its record was read after the containers were listed, so the engine is asked again for a
// container that was not in the list.
func (r *Reconciler) reconcileRecord(ctx context.Context, s *farm.Sandbox, running bool) error {
	switch {
	case s.Node != r.node.ID(): // it has moved
		return nil
	case s.State == farm.SandboxClosing:
		return r.finishClosing(ctx, s)
	case running:
		return nil
	case s.State == farm.SandboxReady, s.State == farm.SandboxBusy:
		if reason, ok := r.node.Gone(ctx, s); ok {
			r.sandboxes.Lose(ctx, s, "", reason.Error())
		}
	case s.State == farm.SandboxStarting && time.Since(s.CreatedAt) > startingGrace:
		pending, err := r.hasLifecycleJob(ctx, s)
		if err == nil && !pending {
			r.sandboxes.Lose(ctx, s, "", "its creation ended before it was ready")
		}
		return err
	}
	return nil
}

// finishClosing closes a sandbox whose close job failed, or whose one-shot job ended with its worker before the clean-up.
func (r *Reconciler) finishClosing(ctx context.Context, s *farm.Sandbox) error {
	pending, err := r.hasLifecycleJob(ctx, s)
	if err != nil || pending {
		return err
	}
	end := farm.SandboxClosed
	if s.Expired {
		end = farm.SandboxExpired
	}
	return r.sandboxes.Dismantle(ctx, s, "", end, "")
}

// hasLifecycleJob reports whether a job that makes or closes the sandbox has not ended.
func (r *Reconciler) hasLifecycleJob(ctx context.Context, s *farm.Sandbox) (bool, error) {
	open, err := r.store.SandboxRoutes(ctx, s.Ref())
	return slices.ContainsFunc(open, func(j store.Route) bool {
		return j.Kind == farm.KindCreate || j.Kind == farm.KindRun || j.Kind == farm.KindClose
	}), err
}

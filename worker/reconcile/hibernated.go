package reconcile

import (
	"context"
	"errors"
	"fmt"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// reconcileHibernated checks a sandbox whose record says hibernated. While it has a job, that hibernates or resumes it, or is about to. Otherwise
// a container that runs is one whose hibernation or resume was not finished: it is ready. One that is gone is lost.
func (r *Reconciler) reconcileHibernated(ctx context.Context, s *farm.Sandbox, running, contained bool) error {
	if s.Node != r.node.ID() || contained && !running {
		return nil
	}
	if jobs, err := r.store.SandboxRoutes(ctx, s.Ref()); err != nil || len(jobs) > 0 {
		return err
	}
	// Only now: a job may have ended after the containers were listed.
	if reason, gone := r.node.Gone(ctx, s); gone {
		return r.loseHibernated(ctx, s, reason)
	}
	if !running {
		return nil
	}
	if err := r.engine.RemoveCheckpoint(ctx, r.node.Container(s)); err != nil { // it is older than what runs
		return fmt.Errorf("remove its checkpoint: %w", err)
	}
	_, err := r.store.MoveSandbox(ctx, store.Move{Ref: s.Ref(), To: farm.SandboxReady, Touch: true, Generation: s.Generation})
	if err != nil && !errors.Is(err, store.ErrMove) {
		return fmt.Errorf("record that it runs: %w", err)
	}
	if err := r.node.SendDeadline(ctx, s); err != nil {
		r.log.WarnContext(ctx, "agent does not know its deadline yet", "sandbox_id", s.ID, "error", err)
	}
	r.log.WarnContext(ctx, "sandbox runs though it was to be hibernated; it is ready again", "sandbox_id", s.ID)
	return nil
}

// loseHibernated marks a hibernated sandbox as lost that has nothing to resume from.
func (r *Reconciler) loseHibernated(ctx context.Context, s *farm.Sandbox, reason error) error {
	has, err := r.engine.HasCheckpoint(ctx, r.node.Container(s))
	switch {
	case err != nil && farm.CodeOf(err) != farm.CodeNotFound:
		return fmt.Errorf("look for its checkpoint: %w", err)
	case !has:
		r.sandboxes.Lose(ctx, s, "", reason.Error())
	}
	return nil
}

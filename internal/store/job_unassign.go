package store

import (
	"context"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// UnassignNode takes a create away from its node and sends it to another queue: its pool member cannot serve it, or the engine of its
// node is dead. Its sandbox, which must not be ready, is queued again without a node, and everything that the attempts so far made of it is
// void (farm.Sandbox.Void). A running job must run under this attempt; it stays running until Requeue. A queued job is given with attempt
// 0, and must be enqueued afterwards. Errors: ErrFenced if it is neither, ErrMove if the sandbox is ready, closing or final.
func (s *Store) UnassignNode(ctx context.Context, ref farm.Ref, attempt int, queue string) error {
	r, err := s.run(ctx, "unassign node", s.scripts.jobUnassign, ref.Tenant, ref.ID, attempt, queue)
	if err != nil {
		return err
	}
	if r.text(0) == "state" {
		return farm.Wrap(ErrMove, farm.CodeConflict, "The sandbox of job %s is %s: it can no longer be created on another node.", ref.ID, r.text(1))
	}
	return fenced("unassign node", ref, r)
}

package store

import (
	"context"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// UnassignNode sends a job that makes its sandbox to another queue, and its sandbox, which is not ready yet, to whichever node takes
// it there, as queued: a claimed member of the pool cannot serve it, or the engine of its node is gone. What the job's attempts
// so far made of the sandbox is void (farm.Sandbox.Void). A running job must be this attempt's and stays so: Release gives it
// back. A queued one is taken with attempt 0; a task must be enqueued for it then. ErrFenced when it is neither, ErrMove when the
// sandbox is ready, or being closed, or has ended.
func (s *Store) UnassignNode(ctx context.Context, ref farm.Ref, attempt int, queue string) error {
	r, err := s.run(ctx, "send job elsewhere", s.scripts.reroute, ref.Tenant, ref.ID, attempt, queue)
	if err != nil {
		return err
	}
	if r.text(0) == "state" {
		return farm.Wrap(ErrMove, farm.CodeConflict, "The sandbox of the job %s is %s and can not be made elsewhere.", ref.ID, r.text(1))
	}
	return fenced("send elsewhere", ref, r)
}

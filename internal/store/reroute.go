package store

import (
	"context"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Reroute sends a job that makes its sandbox to another queue, and its sandbox to whichever node takes it there: a claimed
// member of the pool cannot serve it. A running job must be this attempt's and stays so: Release gives it back. A queued one is
// taken with attempt 0; a task must be enqueued for it then. ErrFenced when it is neither.
func (s *Store) Reroute(ctx context.Context, ref farm.Ref, attempt int, queue string) error {
	r, err := s.run(ctx, "send job elsewhere", s.scripts.reroute, ref.Tenant, ref.ID, attempt, queue)
	if err != nil {
		return err
	}
	return fenced("send elsewhere", ref, r)
}

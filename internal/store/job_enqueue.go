package store

import (
	"context"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Enqueue puts the task of an unfinished job that should have one into its queue, unless it waits there or the job has another attempt by now.
// An archived task is replaced. active: nothing was enqueued, since a server of the queue has the task; more is how many further tasks the job
// may get then, each while servers have all before it.
func (s *Store) Enqueue(ctx context.Context, ref farm.Ref, attempt, more int) (enqueued, active bool, err error) {
	r, err := s.Run(ctx, "enqueue job", "job_enqueue", ref.Tenant, ref.ID, attempt, more)
	if err != nil {
		return false, false, err
	}
	return r.text(1) == "1", r.text(2) == "1", nil
}

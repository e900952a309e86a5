package store

import (
	"context"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// noWorker is the worker of a job that waits for a takeover. It never has a heartbeat, so any worker may claim the job.
const noWorker = "none"

// OfferTakeover lets another worker take over a running job, since its own worker stops in order. The job runs on in its sandbox; the
// next worker that claims it attaches to it. The attempt does not count as a crash (Route.Uncounted). The job must be enqueued afterwards,
// see dispatch.OfferTakeover. ErrFenced if the job no longer runs under this attempt.
func (s *Store) OfferTakeover(ctx context.Context, ref farm.Ref, attempt int) error {
	r, err := s.run(ctx, "offer takeover", s.scripts.jobTakeover, ref.Tenant, ref.ID, attempt, noWorker)
	if err != nil {
		return err
	}
	return fenced("offer takeover", ref, r)
}

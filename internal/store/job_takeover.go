package store

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// nobody stands for the worker of a running job that is handed over. It never has a heartbeat, so any worker may claim.
const nobody = "none"

// HandOver gives a running job out of the hands of a worker that stops in order: the job goes on in its sandbox, whoever
// claims it next attaches to it, and the attempt is not counted against it (Route.Uncounted). A task must be enqueued again,
// see dispatch.OfferTakeover. ErrFenced when the job is no longer this attempt's.
func (s *Store) OfferTakeover(ctx context.Context, ref farm.Ref, attempt int) error {
	// Made here, since it is rare: once in the life of a worker's job at most.
	r, err := s.run(ctx, "hand job over", redis.NewScript(mustLua("job_takeover")), ref.Tenant, ref.ID, attempt, nobody)
	if err != nil {
		return err
	}
	return fenced("hand over", ref, r)
}

package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// ErrCanceled says that a cancel of the job was requested.
var ErrCanceled = errors.New("job was canceled")

// Requeue makes a running job queued again that its worker could not start, for example because its node is full. The job keeps its place in
// its sandbox's FIFO. The attempt still fences, but does not count as a crash (Route.Uncounted). The job must be enqueued afterwards, see
// dispatch.Requeue. Errors: ErrFenced if the job no longer runs under this attempt; ErrCanceled if a cancel was requested: then the
// worker keeps the job and ends it.
func (s *Store) Requeue(ctx context.Context, ref farm.Ref, attempt int) error {
	r, err := s.run(ctx, "requeue job", s.scripts.jobRequeue, ref.Tenant, ref.ID, attempt)
	if err != nil {
		return err
	}
	if r.text(0) == "canceled" {
		return fmt.Errorf("requeue job %s: %w", ref.ID, ErrCanceled)
	}
	return fenced("requeue", ref, r)
}

package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// ErrCanceled says that a cancel was asked for meanwhile.
var ErrCanceled = errors.New("job was canceled")

// Release gives a running job back that its worker has not begun, as where its node has no room: running → queued. It
// keeps its place in its sandbox's line. The attempt still fences, but is not counted against the job (Route.Uncounted). A
// task must be enqueued again, see dispatch.Requeue. ErrFenced when the job is no longer this attempt's, ErrCanceled when
// a cancel was asked for: then it stays with the worker, which ends it.
func (s *Store) Requeue(ctx context.Context, ref farm.Ref, attempt int) error {
	r, err := s.run(ctx, "give job back", s.scripts.release, ref.Tenant, ref.ID, attempt)
	if err != nil {
		return err
	}
	if r.text(0) == "canceled" {
		return fmt.Errorf("give back job %s: %w", ref.ID, ErrCanceled)
	}
	return fenced("give back", ref, r)
}

package worker

import (
	"context"
	"errors"
	"fmt"

	"github.com/sandfarm/sandfarm/internal/store"
)

// handOver leaves a job that goes on in its sandbox to another worker, at once: this one stops. Where that cannot be
// written, the job is taken over when this worker's heartbeat is over, as after a crash.
func (w *Worker) handOver(ctx context.Context, r *run) error {
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer done()
	err := w.dispatch.OfferTakeover(ctx, r.Job.Ref(), r.Job.Attempt)
	switch {
	case errors.Is(err, store.ErrFenced):
		return nil
	case err != nil:
		return fmt.Errorf("hand job %s over: %w", r.Job.ID, err)
	}
	w.log.InfoContext(ctx, "job handed over: this worker stops", "job_id", r.Job.ID, "sandbox_id", r.Job.SandboxID, "attempt", r.Job.Attempt)
	return nil
}

package dispatch

import (
	"context"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// HandOver lets another worker go on with a running job whose worker stops in order, at once. Errors as with
// store.OfferTakeover. Once the record is written, what fails is logged and left to Sweep.
func (d *Dispatcher) OfferTakeover(ctx context.Context, ref farm.Ref, attempt int) error {
	if err := d.store.OfferTakeover(ctx, ref, attempt); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), enqueueTimeout) // the record is written
	defer cancel()
	r, err := d.store.Route(ctx, ref)
	if err == nil && r.State == farm.JobRunning && r.Attempt == attempt {
		err = d.enqueue(ctx, r, taskID(ref.ID, attempt))
	}
	if err != nil {
		d.log.WarnContext(ctx, "job that was handed over is not enqueued yet; the sweeper will", "job_id", ref.ID, "tenant", ref.Tenant, "error", err)
	}
	return nil
}

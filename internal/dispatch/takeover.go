package dispatch

import (
	"context"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// OfferTakeover lets another worker take over a running job at once, since its own worker stops in order. Errors as with
// store.OfferTakeover. Once the record is stored, failures are logged, and Sweep enqueues the job later.
func (d *Dispatcher) OfferTakeover(ctx context.Context, ref farm.Ref, attempt int) error {
	if err := d.store.OfferTakeover(ctx, ref, attempt); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), enqueueTimeout) // the record is stored
	defer cancel()
	r, err := d.store.Route(ctx, ref)
	if err == nil && r.State == farm.JobRunning && r.Attempt == attempt {
		err = d.enqueue(ctx, r, taskID(ref.ID, attempt))
	}
	if err != nil {
		d.log.WarnContext(ctx, "job offered for takeover is not in its queue yet; the sweep will enqueue it", "job_id", ref.ID, "tenant", ref.Tenant, "error", err)
	}
	return nil
}

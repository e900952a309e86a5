package dispatch

import (
	"context"
	"fmt"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Release gives back a job that the worker could not begin and enqueues it again, behind the others. Errors as with
// store.Requeue. Once the record is written, what fails is logged and left to Sweep.
func (d *Dispatcher) Requeue(ctx context.Context, ref farm.Ref, attempt int) error {
	if err := d.store.Requeue(ctx, ref, attempt); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), enqueueTimeout) // the record is written
	defer cancel()
	r, err := d.store.Route(ctx, ref)
	if err == nil && r.State == farm.JobQueued {
		err = d.enqueue(ctx, r, taskID(ref.ID, r.Attempt))
	}
	if err != nil {
		d.log.WarnContext(ctx, "job that was given back is not enqueued yet; the sweeper will", "job_id", ref.ID, "tenant", ref.Tenant, "error", err)
	}
	return nil
}

// taskID names a job's task. Each attempt has its own, because the task of the one before may still be on the queue.
func taskID(job string, attempt int) string {
	if attempt == 0 {
		return job
	}
	return fmt.Sprintf("%s.%d", job, attempt)
}

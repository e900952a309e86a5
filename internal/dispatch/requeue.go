package dispatch

import (
	"context"
	"fmt"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Requeue puts a job that its worker could not start back at the end of its queue. Errors as with store.Requeue. Once the record is stored,
// failures are logged, and Sweep enqueues the job later.
func (d *Dispatcher) Requeue(ctx context.Context, ref farm.Ref, attempt int) error {
	if err := d.store.Requeue(ctx, ref, attempt); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), enqueueTimeout) // the record is stored
	defer cancel()
	r, err := d.store.Route(ctx, ref)
	if err == nil && r.State == farm.JobQueued {
		err = d.enqueue(ctx, r, taskID(ref.ID, r.Attempt))
	}
	if err != nil {
		d.log.WarnContext(ctx, "requeued job is not in its queue yet; the sweep will enqueue it", "job_id", ref.ID, "tenant", ref.Tenant, "error", err)
	}
	return nil
}

// taskID names a job's task. Each attempt has its own, since the task of the attempt before may still be in the queue.
func taskID(job string, attempt int) string {
	if attempt == 0 {
		return job
	}
	return fmt.Sprintf("%s.%d", job, attempt)
}

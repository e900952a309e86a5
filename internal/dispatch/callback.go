package dispatch

import (
	"context"
	"errors"
	"fmt"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/queue"
)

// dropBatch is how many callbacks of a tenant one DropCallbacks gives up at most.
const dropBatch = 10_000

// DropCallbacks gives up the oldest callbacks of a tenant beyond limits.max_callbacks, and returns how many. A receiver that is down would
// otherwise keep jobs and tasks for as long as their deliveries are repeated, which is hours.
func (d *Dispatcher) DropCallbacks(ctx context.Context, tenant string) (n int, err error) {
	refs, err := d.store.CallbacksBeyond(ctx, tenant, d.limits.MaxCallbacks, dropBatch)
	if err != nil {
		return 0, err
	}
	var problems []error
	for _, ref := range refs {
		if err := d.dropCallback(ctx, ref); err != nil {
			problems = append(problems, fmt.Errorf("drop callback of job %s: %w", ref.ID, err))
			if ctx.Err() != nil {
				break
			}
			continue
		}
		n++
	}
	if n > 0 {
		d.log.WarnContext(ctx, "callbacks given up: their receiver does not take them", "tenant", tenant, "callbacks", n,
			"most", d.limits.MaxCallbacks, "first_job_id", refs[0].ID)
	}
	return n, errors.Join(problems...)
}

// dropCallback gives up a callback. Its record goes first: the sweep would enqueue a task again that is gone.
func (d *Dispatcher) dropCallback(ctx context.Context, ref farm.Ref) error {
	if err := d.store.CallbackDone(ctx, ref); err != nil {
		return err
	}
	return d.queue.Remove(ctx, queue.QueueCallbacks, callbackTask(ref))
}

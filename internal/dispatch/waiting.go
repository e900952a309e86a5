package dispatch

import "context"

// Waiting counts the jobs that wait in queues for a worker. What is held for a tenant's other jobs is not in it: of each
// tenant that has any, some are on the queue.
func (d *Dispatcher) Waiting(ctx context.Context, queues ...string) (int, error) {
	return d.queue.Waiting(ctx, queues...)
}

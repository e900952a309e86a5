package dispatch

import "context"

// Waiting counts the tasks that wait in queues for a worker. Parked jobs do not count: each tenant that has any also has tasks in the queue.
func (d *Dispatcher) Waiting(ctx context.Context, queues ...string) (int, error) {
	return d.queue.Waiting(ctx, queues...)
}

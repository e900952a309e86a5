package dispatch

import "context"

// RegisterQueues lists queues that a worker serves, so that they are seen before their first task and after a loss of Redis.
func (d *Dispatcher) RegisterQueues(ctx context.Context, queues ...string) error {
	return d.queue.Register(ctx, queues...)
}

// Waiting counts the tasks that wait in queues for a worker. Parked jobs do not count: each tenant that has any also has tasks in the queue.
func (d *Dispatcher) Waiting(ctx context.Context, queues ...string) (int, error) {
	return d.queue.Waiting(ctx, queues...)
}

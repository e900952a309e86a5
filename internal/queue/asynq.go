package queue

import (
	"context"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// tasks is what a Client uses of asynq. The exported types of this package hold interfaces and functions in place of the types of asynq and of
// the Redis client, since every package that imports this one would compile those again: 9 MB of object code for each.
type tasks interface {
	enqueue(ctx context.Context, kind string, payload []byte, queue string, o EnqueueOptions) error
	delete(queue, id string) error
	deleteQueue(queue string) error
	removeDeadServers() error
}

type asynqTasks struct {
	client *asynq.Client
	admin  *asynq.Inspector
}

func newTasks(rdb redis.UniversalClient) tasks {
	return asynqTasks{client: asynq.NewClientFromRedisClient(rdb), admin: asynq.NewInspectorFromRedisClient(rdb)}
}

// enqueue gives asynq.ErrTaskIDConflict if the queue has a task of that id, in whatever state.
func (a asynqTasks) enqueue(ctx context.Context, kind string, payload []byte, queue string, o EnqueueOptions) error {
	_, err := a.client.EnqueueContext(ctx, asynq.NewTask(kind, payload),
		asynq.TaskID(o.ID), asynq.Queue(queue), asynq.Timeout(o.Timeout), asynq.MaxRetry(max(o.MaxRetry, 0)+spareRetry))
	return err
}

func (a asynqTasks) delete(queue, id string) error  { return a.admin.DeleteTask(queue, id) }
func (a asynqTasks) deleteQueue(queue string) error { return a.admin.DeleteQueue(queue, false) }

func (a asynqTasks) removeDeadServers() error {
	_, err := a.admin.Servers() // listing them removes the dead ones
	return err
}

package queue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Types of tasks.
const (
	TypeJob      = "job"      // run the job
	TypeCallback = "callback" // deliver the callback of a finished job
)

// Task says that there is work to do for a job. It only names the job: the record is the source of truth.
type Task struct {
	Type string // TypeJob or TypeCallback
	Ref  farm.Ref
	// Aside says that the job holds a worker only for a moment, or ends or hibernates a sandbox: it does not wait for the others. A task of a
	// release that did not say so counts among the others.
	Aside bool
	Queue string // set by a Server; it is not enqueued
	Try   Try    // as Queue
}

// Try says which try of a task a handler makes.
type Try struct {
	Number, Max int           // from 1; after an error of the last one the task is archived
	RetryIn     time.Duration // when the next one begins after an error; 0: there is none
}

// Later is the error of a handler that puts its task back: it was no try, and the next one comes after In.
type Later struct{ In time.Duration }

// Error says when the task comes again.
func (l Later) Error() string { return fmt.Sprintf("put back for %s", l.In) }

// spareRetry is a retry that no task uses up: asynq archives a task that comes back from its last one, also where that was no try.
const spareRetry = 1

// isTry reports whether a handler that returned an error has used up a try.
func isTry(err error) bool {
	_, later := errors.AsType[Later](err)
	return !later && !errors.Is(err, asynq.ErrLeaseExpired) && !errors.Is(err, context.Canceled)
}

// tryOf reads the try from the context that asynq gives to a handler.
func tryOf(ctx context.Context, kind string) Try {
	retried, _ := asynq.GetRetryCount(ctx)
	limit, _ := asynq.GetMaxRetry(ctx)
	try := Try{Number: retried + 1, Max: limit + 1 - spareRetry}
	if try.Number < try.Max {
		try.RetryIn = retryDelay(kind, retried)
	}
	return try
}

// payload is short, since asynq writes it again with every heartbeat.
type payload struct {
	farm.Ref
	Aside bool `json:"aside,omitempty"`
}

func encodePayload(t Task) ([]byte, error) {
	data, err := json.Marshal(payload{t.Ref, t.Aside})
	if err != nil {
		return nil, fmt.Errorf("encode task: %w", err)
	}
	return data, nil
}

func decodePayload(kind string, data []byte) (Task, error) {
	var p payload
	if err := json.Unmarshal(data, &p); err != nil {
		return Task{}, fmt.Errorf("decode task: %w", err)
	}
	return Task{Type: kind, Ref: p.Ref, Aside: p.Aside}, nil
}

// Keys of asynq that this package reads, and the channel that wakes a queue's servers.
func taskKey(queue, id string) string  { return "asynq:{" + queue + "}:t:" + id }
func listKey(queue, set string) string { return "asynq:{" + queue + "}:" + set }
func wakeChannel(queue string) string  { return "sf:wake:" + queue }

const queuesKey = "asynq:queues"

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

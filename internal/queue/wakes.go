package queue

import (
	"context"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/batch"
)

// Bounds of the wake-ups that are sent together, and of those that wait.
const (
	maxWakes   = 1024
	maxWaiting = 8192
)

// wakes publishes the wake-ups of queues, by name, and registers the queues. Those that come together are one for each queue, so many tasks
// that are enqueued at once cost few commands.
type wakes = batch.Batch[string]

func newWakes(rdb redis.UniversalClient) *wakes {
	return batch.New(maxWakes, maxWaiting, func(ctx context.Context, queues []string) error {
		ctx = context.WithoutCancel(ctx) // the tasks are in their queues, even if one caller leaves; the client's timeouts bound it
		slices.Sort(queues)
		pipe := rdb.Pipeline()
		for _, queue := range slices.Compact(queues) {
			pipe.SAdd(ctx, queuesKey, queue) // asynq registers a queue once in the life of a client, and Trim may have removed it since
			pipe.Publish(ctx, wakeChannel(queue), "1")
		}
		_, err := pipe.Exec(ctx)
		return err
	})
}

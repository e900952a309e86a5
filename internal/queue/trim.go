package queue

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// trimBatch is how many tasks are looked up at once.
const trimBatch = 200

// Trimmed counts what Trim has removed.
type Trimmed struct {
	Tasks  int // archived ones
	Queues int // empty ones without a server
}

// Trim removes what asynq would keep for months: archived tasks older than before, empty queues for which unused says true with all their
// archived tasks, and what is left of servers that were killed. A removed queue comes back with its next task.
func (c *Client) Trim(ctx context.Context, before time.Time, unused func(queue string) bool) (Trimmed, error) {
	var out Trimmed
	names, err := c.rdb.SMembers(ctx, queuesKey).Result()
	if err != nil {
		return out, unavailable("list queues", err)
	}
	for _, name := range names {
		remove, until := unused(name), before
		if remove {
			until = time.Now() // they will not be read again
		}
		n, err := c.trimArchive(ctx, name, until)
		if out.Tasks += n; err != nil {
			return out, err
		}
		if !remove {
			continue
		}
		removed, err := c.removeEmptyQueue(ctx, name)
		if err != nil {
			return out, err
		}
		if removed {
			out.Queues++
		}
	}
	if err := c.tasks.removeDeadServers(); err != nil {
		return out, unavailable("list servers of queues", err)
	}
	return out, nil
}

// removeEmptyQueue removes an empty queue and its registration, and reports whether it did. asynq removes the registration in a step of its own:
// a task that is enqueued between the two steps would be in a queue that is not listed. So the queue is registered again if it has a task
// after that; Enqueue registers it too, behind the task, so one of the two sees the other.
func (c *Client) removeEmptyQueue(ctx context.Context, name string) (bool, error) {
	err := c.tasks.deleteQueue(name)
	if errors.Is(err, asynq.ErrQueueNotEmpty) || errors.Is(err, asynq.ErrQueueNotFound) {
		return false, nil
	}
	if err != nil {
		return false, unavailable("remove queue", err)
	}
	n, err := c.rdb.Exists(ctx, listKey(name, "pending"), listKey(name, "active"), listKey(name, "retry"), listKey(name, "scheduled")).Result()
	if err != nil {
		return true, unavailable("look for tasks of a removed queue", err)
	}
	if n == 0 {
		return true, nil
	}
	if err := c.rdb.SAdd(ctx, queuesKey, name).Err(); err != nil {
		return true, unavailable("register queue", err)
	}
	return false, nil
}

// trimArchive removes the archived tasks of a queue up to a moment.
func (c *Client) trimArchive(ctx context.Context, queue string, until time.Time) (removed int, err error) {
	for {
		ids, err := c.rdb.ZRangeByScore(ctx, listKey(queue, "archived"), &redis.ZRangeBy{
			Min: "-inf", Max: strconv.FormatInt(until.Unix(), 10), Count: trimBatch,
		}).Result()
		if err != nil {
			return removed, unavailable("list archived tasks", err)
		}
		for _, id := range ids {
			if err := c.tasks.delete(queue, id); err != nil && !errors.Is(err, asynq.ErrTaskNotFound) && !errors.Is(err, asynq.ErrQueueNotFound) {
				return removed, unavailable("remove archived task", err)
			}
			removed++
		}
		if len(ids) < trimBatch {
			return removed, nil
		}
	}
}

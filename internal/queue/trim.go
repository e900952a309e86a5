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

// Trimmed says what Trim has removed.
type Trimmed struct {
	Tasks  int // that were given up
	Queues int // that nobody serves
}

// Trim removes what asynq would keep for months: tasks that were given up before a moment, empty queues for which unused
// says true, and what is left of servers that were killed. A queue that gets a task again is there again.
func (c *Client) Trim(ctx context.Context, before time.Time, unused func(queue string) bool) (Trimmed, error) {
	var out Trimmed
	names, err := c.rdb.SMembers(ctx, queuesKey).Result()
	if err != nil {
		return out, unavailable("list queues", err)
	}
	for _, name := range names {
		n, err := c.trimArchive(ctx, name, before)
		if out.Tasks += n; err != nil {
			return out, err
		}
		if !unused(name) {
			continue
		}
		switch err := c.admin.DeleteQueue(name, false); {
		case err == nil:
			out.Queues++
		case !errors.Is(err, asynq.ErrQueueNotEmpty) && !errors.Is(err, asynq.ErrQueueNotFound):
			return out, unavailable("remove queue", err)
		}
	}
	if _, err := c.admin.Servers(); err != nil { // whoever asks forgets the dead ones
		return out, unavailable("list servers of queues", err)
	}
	return out, nil
}

// trimArchive removes the tasks of a queue that were given up before a moment.
func (c *Client) trimArchive(ctx context.Context, queue string, before time.Time) (removed int, err error) {
	for {
		ids, err := c.rdb.ZRangeByScore(ctx, listKey(queue, "archived"), &redis.ZRangeBy{
			Min: "-inf", Max: strconv.FormatInt(before.Unix(), 10), Count: trimBatch,
		}).Result()
		if err != nil {
			return removed, unavailable("list tasks that were given up", err)
		}
		for _, id := range ids {
			if err := c.admin.DeleteTask(queue, id); err != nil && !errors.Is(err, asynq.ErrTaskNotFound) && !errors.Is(err, asynq.ErrQueueNotFound) {
				return removed, unavailable("remove task that was given up", err)
			}
			removed++
		}
		if len(ids) < trimBatch {
			return removed, nil
		}
	}
}

package queue

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// Waiting counts the tasks that wait in queues now.
func (c *Client) Waiting(ctx context.Context, queues ...string) (n int, err error) {
	if len(queues) == 0 {
		return 0, nil
	}
	pipe := c.rdb.Pipeline()
	lengths := make([]*redis.IntCmd, len(queues))
	for i, name := range queues {
		lengths[i] = pipe.LLen(ctx, listKey(name, "pending"))
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return 0, unavailable("count waiting tasks", err)
	}
	for _, length := range lengths {
		n += int(length.Val())
	}
	return n, nil
}

package queue

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// oldest reads when the next task of a queue was enqueued; "" if there is none. KEYS[1] is the list of pending tasks, ARGV[1] the prefix
// of the keys of tasks. It is a script so that the task cannot be taken in between.
const oldest = `
local id = redis.call("LINDEX", KEYS[1], -1)
if not id then return "" end
return redis.call("HGET", ARGV[1] .. id, "pending_since") or ""`

// askOldest adds the script to a pipeline.
func askOldest(ctx context.Context, pipe redis.Pipeliner, queue string) *redis.Cmd {
	return pipe.Eval(ctx, oldest, []string{listKey(queue, "pending")}, taskKey(queue, ""))
}

// ageOf reads the answer of oldest, nanoseconds since 1970, and returns seconds.
func ageOf(answer *redis.Cmd, now time.Time) float64 {
	since, err := answer.Int64()
	if err != nil {
		return 0 // nothing waits
	}
	return max(now.Sub(time.Unix(0, since)).Seconds(), 0)
}

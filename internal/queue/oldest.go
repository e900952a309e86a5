package queue

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// oldest finds for how long the task that is next in a queue has waited; 0 when there is none. KEYS[1] is the list of the
// tasks that wait, ARGV[1] what the keys of tasks begin with. Redis runs it in one go: the task cannot be taken meanwhile.
const oldest = `
local id = redis.call("LINDEX", KEYS[1], -1)
if not id then return "" end
return redis.call("HGET", ARGV[1] .. id, "pending_since") or ""`

// askOldest puts the question into a pipeline.
func askOldest(ctx context.Context, pipe redis.Pipeliner, queue string) *redis.Cmd {
	return pipe.Eval(ctx, oldest, []string{listKey(queue, "pending")}, taskKey(queue, ""))
}

// ageOf reads the answer: nanoseconds since the epoch.
func ageOf(answer *redis.Cmd, now time.Time) float64 {
	since, err := answer.Int64()
	if err != nil {
		return 0 // nothing waits
	}
	return max(now.Sub(time.Unix(0, since)).Seconds(), 0)
}

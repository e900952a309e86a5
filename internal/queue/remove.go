package queue

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// removeScript deletes some tasks of a queue, in whatever state they are, and the rest of the queue once it has none. KEYS[1] is the prefix of
// the queue's keys, ARGV[1] how many tasks of each state to delete. Returns 1 if there may be more.
var removeScript = redis.NewScript(`
local prefix, most, more = KEYS[1], tonumber(ARGV[1]), 0
local function drop(ids)
  for _, id in ipairs(ids) do redis.call("DEL", prefix .. "t:" .. id) end
  if #ids == most then more = 1 end
end
for _, name in ipairs({"pending", "active"}) do
  local ids = redis.call("LRANGE", prefix .. name, 0, most - 1)
  drop(ids)
  redis.call("LTRIM", prefix .. name, #ids, -1)
end
for _, name in ipairs({"scheduled", "retry", "archived", "completed"}) do
  local ids = redis.call("ZRANGE", prefix .. name, 0, most - 1)
  drop(ids)
  if #ids > 0 then redis.call("ZREMRANGEBYRANK", prefix .. name, 0, #ids - 1) end
end
if more == 0 then redis.call("DEL", prefix .. "lease", prefix .. "paused", prefix .. "processed", prefix .. "failed") end
return more`)

// RemoveQueue removes a queue that no worker serves any more, with all its tasks: also active ones, whose servers are gone. asynq itself keeps a queue
// with active tasks for ever.
func (c *Client) RemoveQueue(ctx context.Context, queue string) error {
	for more := 1; more == 1; {
		var err error
		if more, err = removeScript.Run(ctx, c.rdb, []string{listKey(queue, "")}, trimBatch).Int(); err != nil {
			return unavailable("remove queue", err)
		}
	}
	if err := c.rdb.SRem(ctx, queuesKey, queue).Err(); err != nil {
		return unavailable("remove queue", err)
	}
	return nil
}

// Register lists queues, so that Depths and Trim see them before their first task, and again after Redis lost its data.
func (c *Client) Register(ctx context.Context, queues ...string) error {
	members := make([]any, len(queues))
	for i, name := range queues {
		members[i] = name
	}
	if err := c.rdb.SAdd(ctx, queuesKey, members...).Err(); err != nil {
		return unavailable("register queues", err)
	}
	return nil
}

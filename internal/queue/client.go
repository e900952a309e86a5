// Package queue moves tasks from the processes that accept jobs to the workers that run them. It owns asynq; no other package imports it.
//
// It promises that an enqueued task reaches a handler at least once, and soon: an idle server starts the handler a millisecond or two after
// Enqueue, without polling (see hook). It does not promise exactly once: after a lost acknowledgement, a crash or a timeout the task is
// delivered again. Handlers read the job's record to see whether there is work to do.
package queue

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Defaults of EnqueueOptions.
const (
	defaultTimeout  = 25 * time.Hour // longer than any job may run
	defaultMaxRetry = 25             // asynq's default; the job's record is given up sooner
)

// depthsTTL is how long Depths remembers its answer, so that scrapes and dashboards cost one call a second.
const depthsTTL = time.Second

// EnqueueOptions are the settings of one task.
type EnqueueOptions struct {
	ID       string        // of the task, unique in its queue: a second task of that id is not added; required
	Timeout  time.Duration // of the handler, rounded up to seconds; 0: 25 hours. The handler must end before that
	MaxRetry int           // after so many errors the task is archived; 0: 25
}

// Client enqueues tasks and inspects queues. It is safe for concurrent use.
type Client struct {
	rdb   redis.Cmdable
	tasks tasks
	log   *slog.Logger

	mu     sync.Mutex
	depths []farm.QueueDepth
	asOf   time.Time
}

// NewClient makes a Client on a connection, which the caller closes. A nil logger means slog.Default.
func NewClient(rdb redis.UniversalClient, logger *slog.Logger) *Client {
	if logger == nil {
		logger = slog.Default()
	}
	return &Client{rdb: rdb, tasks: newTasks(rdb), log: logger}
}

// Enqueue puts a task into a queue and wakes its servers. If the queue already has a task of that id, nothing changes, and that is not an
// error. CodeUnavailable if Redis does not answer: then the task may or may not be in the queue, so enqueue it again under the same id.
func (c *Client) Enqueue(ctx context.Context, queue string, t Task, o EnqueueOptions) error {
	if queue == "" || o.ID == "" {
		return fmt.Errorf("enqueue task of %s: queue %q and id %q are needed", t.Ref.ID, queue, o.ID)
	}
	payload, err := encodePayload(t)
	if err != nil {
		return err
	}
	o.Timeout, o.MaxRetry = roundUpToSecond(cmp.Or(o.Timeout, defaultTimeout)), cmp.Or(o.MaxRetry, defaultMaxRetry)
	err = c.tasks.enqueue(ctx, t.Type, payload, queue, o)
	if errors.Is(err, asynq.ErrTaskIDConflict) {
		if waits, err := c.Has(ctx, queue, o.ID); err != nil || waits {
			return err
		}
		if err := c.Remove(ctx, queue, o.ID); err != nil { // it will not run again
			return err
		}
		err = c.tasks.enqueue(ctx, t.Type, payload, queue, o)
	}
	if err != nil && !errors.Is(err, asynq.ErrTaskIDConflict) {
		return unavailable("enqueue task", err)
	}
	pipe := c.rdb.Pipeline()
	pipe.SAdd(ctx, queuesKey, queue) // asynq registers a queue once in the life of a client, and Trim may have removed it since
	pipe.Publish(ctx, wakeChannel(queue), "1")
	if _, err := pipe.Exec(ctx); err != nil {
		c.log.DebugContext(ctx, "wake-up not published; the servers look within a second", "queue", queue, "error", err)
	}
	return nil
}

// Remove removes a task, unless a server handles it at this moment. A task that is not there counts as removed. asynq itself keeps a task that
// will not run again, and its id, for months.
func (c *Client) Remove(ctx context.Context, queue, id string) error {
	state, err := c.State(ctx, queue, id)
	if err != nil || state == "" || state == "active" {
		return err
	}
	err = c.tasks.delete(queue, id)
	if err == nil || errors.Is(err, asynq.ErrTaskNotFound) || errors.Is(err, asynq.ErrQueueNotFound) {
		return nil
	}
	if state, stateErr := c.State(ctx, queue, id); stateErr == nil && state == "active" { // a server has just taken it
		return nil
	}
	return unavailable("remove task", err)
}

// State reads the state of a task: pending, active, retry, scheduled, archived or completed; "" if it is not in the queue.
func (c *Client) State(ctx context.Context, queue, id string) (string, error) {
	state, err := c.rdb.HGet(ctx, taskKey(queue, id), "state").Result()
	if errors.Is(err, redis.Nil) {
		return "", nil
	}
	if err != nil {
		return "", unavailable("read task", err)
	}
	return state, nil
}

// Has reports whether a queue has a task of that id that waits or runs.
func (c *Client) Has(ctx context.Context, queue, id string) (bool, error) {
	state, err := c.State(ctx, queue, id)
	return state != "" && state != "archived" && state != "completed", err
}

// Depths counts the tasks that wait and run in every queue, by name. The answer is up to a second old.
func (c *Client) Depths(ctx context.Context) ([]farm.QueueDepth, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.asOf) < depthsTTL {
		return slices.Clone(c.depths), nil
	}
	names, err := c.rdb.SMembers(ctx, queuesKey).Result()
	if err != nil {
		return nil, unavailable("list queues", err)
	}
	slices.Sort(names)
	pipe := c.rdb.Pipeline()
	type counts struct {
		pending, retry, scheduled, active *redis.IntCmd
		oldest                            *redis.Cmd
	}
	cmds := make([]counts, len(names))
	for i, name := range names {
		cmds[i] = counts{
			pipe.LLen(ctx, listKey(name, "pending")), pipe.ZCard(ctx, listKey(name, "retry")),
			pipe.ZCard(ctx, listKey(name, "scheduled")), pipe.LLen(ctx, listKey(name, "active")), askOldest(ctx, pipe, name),
		}
	}
	if len(names) > 0 {
		if _, err := pipe.Exec(ctx); err != nil {
			return nil, unavailable("read depths of queues", err)
		}
	}
	now := time.Now()
	depths := make([]farm.QueueDepth, len(names))
	for i, name := range names {
		n := cmds[i]
		depths[i] = farm.QueueDepth{
			Name: name, Depth: int(n.pending.Val() + n.retry.Val() + n.scheduled.Val()), Running: int(n.active.Val()),
			OldestSeconds: ageOf(n.oldest, now),
		}
	}
	c.depths, c.asOf = depths, now
	return slices.Clone(depths), nil
}

// roundUpToSecond rounds up, since asynq truncates to seconds and reads 0 as half an hour.
func roundUpToSecond(d time.Duration) time.Duration {
	return max((d + time.Second - 1).Truncate(time.Second), time.Second)
}

func unavailable(what string, err error) error {
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("%s: %w", what, err)
	}
	return fmt.Errorf("%s: %w", what, farm.Wrap(err, farm.CodeUnavailable, "The queue does not answer. Try again in a moment."))
}

//go:embed enqueue.lua
var enqueueLua string

// EnqueueLua is a piece of Lua for scripts that enqueue jobs in the step that makes them runnable. It defines the function enqueueTask(queue,
// id of the task, tenant, id of the job, timeout in seconds, time in microseconds, Task.Aside), which does what Client.Enqueue does with a task of
// TypeJob. It returns nil if it added the task, else the state of the one of that id that is there, as Client.State does.
func EnqueueLua() string {
	return fmt.Sprintf("local TASK_TYPE, TASK_RETRY = '%s', %d\n\n", TypeJob, defaultMaxRetry+spareRetry) + enqueueLua
}

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

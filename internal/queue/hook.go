package queue

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Pauses of the hook.
const (
	idleLook   = time.Second            // how long a lost wake-up can delay a task
	errorPause = 200 * time.Millisecond // otherwise asynq would retry at once while Redis is down, and use a whole core
)

// hook makes asynq's polling blocking. asynq asks its queues in turn with a script that returns nil for an empty one, and sleeps if all are
// empty; that sleep is set to a millisecond. The hook is part of the server's own client and recognises the script by its four keys. When
// all queues of a round were empty, it withholds the last answer until a wake-up, or until idleLook has passed. A wake-up that comes while
// asynq asks is kept, so none falls between asking and waiting.
type hook struct {
	queues int
	gate   func(queue string) bool // nil: no queue is paused
	wake   chan struct{}           // holds one wake-up
	stop   chan struct{}           // closed: nothing blocks from then on

	mu    sync.Mutex
	empty int // queues in a row that were empty
}

var _ redis.Hook = (*hook)(nil)

func newHook(queues int, gate func(queue string) bool) *hook {
	return &hook{queues: queues, gate: gate, wake: make(chan struct{}, 1), stop: make(chan struct{})}
}

// DialHook does nothing.
func (h *hook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

// ProcessPipelineHook does nothing: asynq does not dequeue in pipelines.
func (h *hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// ProcessHook withholds the last empty answer of a round. A queue whose gate is paused is not asked and counts as empty.
func (h *hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if !isDequeue(cmd) {
			return next(ctx, cmd)
		}
		if h.gate != nil && !h.gate(queueName(cmd)) {
			cmd.SetErr(redis.Nil)
			h.after(redis.Nil)
			return redis.Nil
		}
		err := next(ctx, cmd)
		h.after(err)
		return err
	}
}

// after waits, if the answer to a dequeue is a reason to.
func (h *hook) after(err error) {
	switch {
	case err == nil:
		h.reset()
	case errors.Is(err, redis.Nil):
		if h.missed() {
			h.wait(idleLook, h.wake)
		}
	case redis.HasErrorPrefix(err, "NOSCRIPT"): // asynq sends the whole script next
	default:
		h.reset()
		h.wait(errorPause, nil)
	}
}

func (h *hook) wait(at time.Duration, wake <-chan struct{}) {
	timer := time.NewTimer(at)
	defer timer.Stop()
	select {
	case <-wake:
	case <-timer.C:
	case <-h.stop:
	}
}

// missed counts an empty queue and reports whether it was the last one of a round.
func (h *hook) missed() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.empty++
	if h.empty < h.queues {
		return false
	}
	h.empty = 0
	return true
}

func (h *hook) reset() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.empty = 0
}

// signal wakes the hook.
func (h *hook) signal() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// queueName is the queue of a dequeue.
func queueName(cmd redis.Cmder) string {
	key, _ := cmd.Args()[3].(string)
	return strings.TrimSuffix(strings.TrimPrefix(key, "asynq:{"), "}:pending")
}

// isDequeue recognises asynq's dequeue script by its keys: pending, paused, active and lease, in this order. No other script of asynq has the
// same.
func isDequeue(cmd redis.Cmder) bool {
	args := cmd.Args()
	if len(args) < 7 || (cmd.Name() != "evalsha" && cmd.Name() != "eval") {
		return false
	}
	for i, suffix := range []string{"}:pending", "}:paused", "}:active", "}:lease"} {
		key, ok := args[3+i].(string)
		if !ok || !strings.HasPrefix(key, "asynq:{") || !strings.HasSuffix(key, suffix) {
			return false
		}
	}
	return true
}

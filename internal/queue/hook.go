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
	idleLook   = time.Second            // how long a wake-up that got lost can delay a task
	errorPause = 200 * time.Millisecond // asynq asks again at once when Redis is down, and would burn a core
)

// hook makes asynq's polling blocking. asynq asks its queues in turn with a script that gives nil for an empty one, and
// sleeps when all gave nil; that sleep is set to a millisecond. The hook sits in the server's own client, knows that
// script by its four keys, and when all queues of a round were empty it keeps back the last answer until somebody enqueued
// or idleLook has passed. A wake-up that comes while asynq asks is kept, so it can not fall between asking and waiting.
type hook struct {
	queues int
	gate   func(queue string) bool // nil: every queue is open
	wake   chan struct{}           // one place: a wake-up is there or not
	stop   chan struct{}           // closed: never block again

	mu    sync.Mutex
	empty int // queues that were empty one after the other
}

var _ redis.Hook = (*hook)(nil)

func newHook(queues int, gate func(queue string) bool) *hook {
	return &hook{queues: queues, gate: gate, wake: make(chan struct{}, 1), stop: make(chan struct{})}
}

// DialHook leaves dialing as it is.
func (h *hook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

// ProcessPipelineHook leaves pipelines as they are: asynq does not dequeue in one.
func (h *hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// ProcessHook keeps back the last empty answer of a round. A queue whose gate is closed is not asked: it counts as empty.
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

// after looks at the answer to a dequeue and waits where there is reason to.
func (h *hook) after(err error) {
	switch {
	case err == nil:
		h.reset()
	case errors.Is(err, redis.Nil):
		if h.missed() {
			h.wait(idleLook, h.wake)
		}
	case redis.HasErrorPrefix(err, "NOSCRIPT"): // the whole script follows
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

// missed counts an empty queue and reports whether it was the last of a round.
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

// signal says that something was enqueued.
func (h *hook) signal() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// queueName is the queue that a dequeue asks.
func queueName(cmd redis.Cmder) string {
	key, _ := cmd.Args()[3].(string)
	return strings.TrimSuffix(strings.TrimPrefix(key, "asynq:{"), "}:pending")
}

// isDequeue knows asynq's dequeue script by its keys: pending, paused, active and lease, in this order. No other script
// of asynq has them so.
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

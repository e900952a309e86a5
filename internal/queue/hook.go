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
	idleLook   = time.Second            // how long a lost wake-up can delay a task, and how long an empty queue is not asked
	errorPause = 200 * time.Millisecond // otherwise asynq would retry at once while Redis is down, and use a whole core
)

// hook makes asynq's polling blocking. asynq asks its queues in turn with a script that returns nil for an empty one, and sleeps if all are
// empty; that sleep is set to a millisecond. The hook is part of the server's own client and recognises the script by its four keys. When
// all queues of a round were empty, it withholds the last answer until a wake-up, or until idleLook has passed. A wake-up that comes while
// asynq asks is kept, so none falls between asking and waiting.
//
// Redis is not asked for a queue that was empty at the last look, until a wake-up of that queue: a server of many queues would otherwise ask
// for all of them around each task.
type hook struct {
	queues int
	gate   func(queue string) bool // nil: no queue is paused
	wake   chan struct{}           // holds one wake-up
	stop   chan struct{}           // closed: nothing blocks from then on

	mu    sync.Mutex
	empty int    // queues in a row that were empty
	wakes uint64 // of all queues
	seen  map[string]look
}

// look is what is known of a queue.
type look struct {
	empty time.Time // when it was found empty; zero: it may have tasks
	wakes uint64    // its own wake-ups
}

var _ redis.Hook = (*hook)(nil)

func newHook(queues int, gate func(queue string) bool) *hook {
	return &hook{queues: queues, gate: gate, wake: make(chan struct{}, 1), stop: make(chan struct{}), seen: map[string]look{}}
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
		queue := queueName(cmd)
		wakes, empty := h.known(queue)
		if empty || h.gate != nil && !h.gate(queue) {
			cmd.SetErr(redis.Nil)
			h.after(redis.Nil)
			return redis.Nil
		}
		err := next(ctx, cmd)
		if errors.Is(err, redis.Nil) {
			h.found(queue, wakes)
		}
		h.after(err)
		return err
	}
}

// known reports whether a queue is known to be empty, and how many wake-ups it has had.
func (h *hook) known(queue string) (wakes uint64, empty bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.seen[queue]
	return h.wakes + l.wakes, !l.empty.IsZero() && time.Since(l.empty) < idleLook
}

// found notes that a queue was empty, unless there was a wake-up since it was asked.
func (h *hook) found(queue string, wakes uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l := h.seen[queue]; h.wakes+l.wakes == wakes {
		l.empty = time.Now()
		h.seen[queue] = l
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

// signal wakes the hook: this queue may have a task, or any of them if it is "".
func (h *hook) signal(queue string) {
	h.mu.Lock()
	if queue == "" {
		h.wakes++
		for name, l := range h.seen {
			l.empty = time.Time{}
			h.seen[name] = l
		}
	} else {
		l := h.seen[queue]
		h.seen[queue] = look{wakes: l.wakes + 1}
	}
	h.mu.Unlock()
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

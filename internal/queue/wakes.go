package queue

import (
	"context"
	"sync"

	"github.com/redis/go-redis/v9"
)

// wakes publishes the wake-ups of queues. Those that come while others are on their way are sent together, one for each queue, so many tasks
// that are enqueued at once cost few commands.
type wakes struct {
	rdb redis.UniversalClient

	mu      sync.Mutex
	next    *wakeBatch // nil: none is due
	sending bool
}

// wakeBatch is the wake-ups that are sent together.
type wakeBatch struct {
	queues map[string]bool
	done   chan struct{} // closed when err is set
	err    error
}

// wake wakes the servers of a queue, and registers it.
func (w *wakes) wake(ctx context.Context, queue string) error {
	w.mu.Lock()
	if w.next == nil {
		w.next = &wakeBatch{queues: map[string]bool{}, done: make(chan struct{})}
	}
	b := w.next
	b.queues[queue] = true
	if !w.sending {
		w.sending = true
		go w.send(context.WithoutCancel(ctx)) // the tasks are in their queues, even if one caller leaves
	}
	w.mu.Unlock()
	select {
	case <-b.done:
		return b.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// send sends wake-ups until none is due. The client's timeouts bound each round trip.
func (w *wakes) send(ctx context.Context) {
	for {
		w.mu.Lock()
		b := w.next
		w.next = nil
		if b == nil {
			w.sending = false
			w.mu.Unlock()
			return
		}
		w.mu.Unlock()
		pipe := w.rdb.Pipeline()
		for queue := range b.queues {
			pipe.SAdd(ctx, queuesKey, queue) // asynq registers a queue once in the life of a client, and Trim may have removed it since
			pipe.Publish(ctx, wakeChannel(queue), "1")
		}
		_, b.err = pipe.Exec(ctx)
		close(b.done)
	}
}

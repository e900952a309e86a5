package store

import (
	"context"
	"sync"
)

// batcher sends together what is ready at the same time: values that come while one batch is on its way are the next one. So a single value waits for
// nothing, and many cost few round trips. It is safe for concurrent use.
type batcher[T any] struct {
	send func(context.Context, []T) error
	most int
	room chan struct{} // has a value for each that waits or is on its way

	mu      sync.Mutex
	waiting []*batchItem[T]
	sending bool
}

type batchItem[T any] struct {
	ctx   context.Context // of a value that waits for its turn
	value T
	sent  chan struct{} // closed when err is set
	err   error
}

// newBatcher makes a batcher. send gets at most most values, with the context of the first one's caller, and must return in bounded time. Once pending
// values wait or are on their way, further callers wait for room.
func newBatcher[T any](most, pending int, send func(context.Context, []T) error) *batcher[T] {
	return &batcher[T]{send: send, most: most, room: make(chan struct{}, pending)}
}

// do sends a value with the next batch and returns the error of its send. If ctx ends first, do returns its cause; the value may still be sent.
func (b *batcher[T]) do(ctx context.Context, value T) error {
	select {
	case b.room <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	it := &batchItem[T]{ctx: ctx, value: value, sent: make(chan struct{})}
	b.mu.Lock()
	b.waiting = append(b.waiting, it)
	if !b.sending {
		b.sending = true
		go b.run() //nolint:contextcheck // it sends the values of others, too
	}
	b.mu.Unlock()
	select {
	case <-it.sent:
		return it.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// queued returns how many values wait for the next batch.
func (b *batcher[T]) queued() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.waiting)
}

// run sends batches until no value waits.
func (b *batcher[T]) run() {
	for {
		b.mu.Lock()
		n := min(len(b.waiting), b.most)
		if n == 0 {
			b.sending = false
			b.mu.Unlock()
			return
		}
		items := b.waiting[:n:n]
		b.waiting = b.waiting[n:]
		b.mu.Unlock()
		values := make([]T, n)
		for i, it := range items {
			values[i] = it.value
		}
		err := b.send(items[0].ctx, values)
		for _, it := range items {
			it.err = err
			<-b.room
			close(it.sent)
		}
	}
}

// Package batch sends together what is ready at the same time: values that come while one batch is on its way are the next one. So a single
// value waits for nothing, and many cost few round trips.
package batch

import (
	"context"
	"sync"
)

// Batch sends values, one batch at a time. It is safe for concurrent use.
type Batch[T any] struct {
	send func(context.Context, []T) error
	most int
	room chan struct{} // has a value for each that waits or is on its way

	mu      sync.Mutex
	waiting []*item[T]
	sending bool
}

type item[T any] struct {
	ctx   context.Context //nolint:containedctx // of a value that waits for its turn
	value T
	sent  chan struct{} // closed when err is set
	err   error
}

// New makes a Batch. send gets at most most values, with the context of the first one's caller, and must return in bounded time. Once pending
// values wait or are on their way, further callers wait for room.
func New[T any](most, pending int, send func(context.Context, []T) error) *Batch[T] {
	return &Batch[T]{send: send, most: most, room: make(chan struct{}, pending)}
}

// Do sends a value with the next batch and returns the error of its send. If ctx ends first, Do returns its cause; the value may still be sent.
func (b *Batch[T]) Do(ctx context.Context, value T) error {
	select {
	case b.room <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	it := &item[T]{ctx: ctx, value: value, sent: make(chan struct{})}
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

// Waiting returns how many values wait for the next batch.
func (b *Batch[T]) Waiting() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.waiting)
}

// run sends batches until no value waits.
func (b *Batch[T]) run() {
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

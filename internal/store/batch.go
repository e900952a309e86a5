package store

import (
	"context"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Bounds of a batch and of the calls that wait for one.
const (
	maxBatch   = 128
	maxBatched = 1024
)

// batch sends calls of scripts that are ready at the same time to Redis together: those that come while one batch is on its way are the next
// one. So a single call waits for nothing, and many cost few round trips. Once maxBatched calls wait, further callers wait for room.
//
// The calls of a batch do not depend on each other: each succeeds or fails by itself, and if the connection breaks, the outcome of each is
// unknown, as that of a single call would be.
//
// With confirm, Redis is asked at the end of each batch to wait until the writes are durable; a call fails if it did not.
type batch struct {
	rdb     redis.UniversalClient
	confirm *confirm      // nil: none
	room    chan struct{} // has a value for each call that waits or is on its way

	mu      sync.Mutex
	waiting []*batched
	sending bool
}

// batched is one call of a script.
type batched struct {
	ctx    context.Context //nolint:containedctx // of a call that waits for its turn
	script *redis.Script
	keys   []string
	argv   []any
	done   chan struct{} // closed when result and err are set
	result []any
	err    error
}

func newBatch(rdb redis.UniversalClient, confirm *confirm) *batch {
	return &batch{rdb: rdb, confirm: confirm, room: make(chan struct{}, maxBatched)}
}

// run calls a script with the next batch. If ctx ends first, the call may still take effect.
func (b *batch) run(ctx context.Context, script *redis.Script, keys []string, argv []any) ([]any, error) {
	select {
	case b.room <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	c := &batched{ctx: ctx, script: script, keys: keys, argv: argv, done: make(chan struct{})}
	b.mu.Lock()
	b.waiting = append(b.waiting, c)
	if !b.sending {
		b.sending = true
		go b.send() //nolint:contextcheck // it makes the calls of others too
	}
	b.mu.Unlock()
	select {
	case <-c.done:
		return c.result, c.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// send sends batches until no call waits.
func (b *batch) send() {
	for {
		b.mu.Lock()
		n := min(len(b.waiting), maxBatch)
		if n == 0 {
			b.sending = false
			b.mu.Unlock()
			return
		}
		calls := b.waiting[:n:n]
		b.waiting = b.waiting[n:]
		b.mu.Unlock()
		b.exec(calls)
		for _, c := range calls {
			<-b.room
			close(c.done)
		}
	}
}

// exec makes calls in one round trip. The client's timeouts bound it.
func (b *batch) exec(calls []*batched) {
	if len(calls) == 1 && b.confirm == nil {
		c := calls[0]
		c.result, c.err = c.script.Run(c.ctx, b.rdb, c.keys, c.argv...).Slice()
		return
	}
	ctx := context.WithoutCancel(calls[0].ctx) // that of one caller must not end the calls of others
	if unknown := b.pipeline(ctx, calls, (*redis.Script).EvalSha); len(unknown) > 0 {
		b.pipeline(ctx, unknown, (*redis.Script).Eval)
	}
}

// pipeline makes calls in one pipeline and returns those whose script Redis does not know.
func (b *batch) pipeline(
	ctx context.Context, calls []*batched, eval func(*redis.Script, context.Context, redis.Scripter, []string, ...any) *redis.Cmd,
) (unknown []*batched) {
	pipe := b.rdb.Pipeline()
	cmds := make([]*redis.Cmd, len(calls))
	for i, c := range calls {
		cmds[i] = eval(c.script, ctx, pipe, c.keys, c.argv...)
	}
	confirmed := b.confirm.add(ctx, pipe, calls[0].keys)
	_, _ = pipe.Exec(ctx) // each command has its own error
	unconfirmed := confirmed()
	for i, c := range calls {
		if c.result, c.err = cmds[i].Slice(); c.err == nil {
			c.err = unconfirmed
		} else if redis.HasErrorPrefix(c.err, "NOSCRIPT") {
			unknown = append(unknown, c)
		}
	}
	return unknown
}

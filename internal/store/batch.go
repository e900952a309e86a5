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
type batch struct {
	rdb  redis.UniversalClient
	room chan struct{} // has a value for each call that waits or is on its way

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

func newBatch(rdb redis.UniversalClient) *batch {
	return &batch{rdb: rdb, room: make(chan struct{}, maxBatched)}
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
		go b.send()
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
	if len(calls) == 1 {
		c := calls[0]
		c.result, c.err = c.script.Run(c.ctx, b.rdb, c.keys, c.argv...).Slice()
		return
	}
	ctx := context.WithoutCancel(calls[0].ctx) // that of one caller must not end the calls of others
	pipe := b.rdb.Pipeline()
	cmds := make([]*redis.Cmd, len(calls))
	for i, c := range calls {
		cmds[i] = c.script.EvalSha(ctx, pipe, c.keys, c.argv...)
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	for i, c := range calls {
		cmd := cmds[i]
		if redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
			cmd = c.script.Run(ctx, b.rdb, c.keys, c.argv...)
		}
		c.result, c.err = cmd.Slice()
	}
}

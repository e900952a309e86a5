package store

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// Bounds of a batch and of the calls that wait for one.
const (
	maxBatch   = 128
	maxBatched = 1024
)

// scriptBatch sends calls of scripts that are ready at the same time to Redis together. The calls of a batch do not depend on each other: each
// succeeds or fails by itself, and if the connection breaks, the outcome of each is unknown, as that of a single call would be.
//
// With confirm, Redis is asked at the end of each batch to wait until the writes are durable; a call fails if it did not.
type scriptBatch struct {
	rdb     redis.Cmdable
	confirm *confirm // nil: none
	calls   *batcher[*batched]
}

// batched is one call of a script.
type batched struct {
	script *redis.Script
	keys   []string
	argv   []any
	result []any
	err    error
}

func newBatch(rdb redis.Cmdable, confirm *confirm) *scriptBatch {
	b := &scriptBatch{rdb: rdb, confirm: confirm}
	b.calls = newBatcher(maxBatch, maxBatched, b.exec)
	return b
}

// run calls a script with the next batch. If ctx ends first, the call may still take effect.
func (b *scriptBatch) run(ctx context.Context, script *redis.Script, keys []string, argv []any) ([]any, error) {
	c := &batched{script: script, keys: keys, argv: argv}
	if b.calls.do(ctx, c) != nil {
		return nil, ctx.Err()
	}
	return c.result, c.err
}

// exec makes calls in one round trip. The client's timeouts bound it.
func (b *scriptBatch) exec(ctx context.Context, calls []*batched) error {
	if len(calls) == 1 && b.confirm == nil {
		c := calls[0]
		c.result, c.err = c.script.Run(ctx, b.rdb, c.keys, c.argv...).Slice()
		return nil
	}
	ctx = context.WithoutCancel(ctx) // that of one caller must not end the calls of others
	if unknown := b.pipeline(ctx, calls, (*redis.Script).EvalSha); len(unknown) > 0 {
		b.pipeline(ctx, unknown, (*redis.Script).Eval)
	}
	return nil // each call has its own error
}

// pipeline makes calls in one pipeline and returns those whose script Redis does not know.
func (b *scriptBatch) pipeline(
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

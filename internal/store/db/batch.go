package db

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Durability says what the acceptance, a checkpoint and the end of a job wait for. The zero value waits for nothing, and counts what Redis has
// answered as durable: for a Redis without a file.
type Durability string

// The durabilities.
const (
	// DurabilityEverySec waits for nothing. A write is durable a little later, by Redis' own fsync of its append-only file.
	DurabilityEverySec Durability = "everysec"
	// DurabilityAOF waits until the append-only file is synced (WAITAOF 1 0, Redis 7.2 or newer).
	DurabilityAOF Durability = "aof"
	// DurabilityReplica waits until one replica has the write (WAIT 1).
	DurabilityReplica Durability = "replica"
)

const (
	// confirmTimeout is how long a write waits for the file or the replica. It is less than the client waits for an answer.
	confirmTimeout = 2 * time.Second
)

// confirm is the command that waits for the writes of a pipeline: Redis waits for the writes of one connection only. Nil adds nothing.
type confirm struct{ args []any }

func (d Durability) confirm() *confirm {
	switch d {
	case DurabilityAOF:
		return &confirm{[]any{"waitaof", 1, 0, confirmTimeout.Milliseconds()}}
	case DurabilityReplica:
		return &confirm{[]any{"wait", 1, confirmTimeout.Milliseconds()}}
	default:
		return nil
	}
}

// add adds the command to a pipeline. When that was sent, result says whether its writes are durable.
func (c *confirm) add(ctx context.Context, p redis.Pipeliner, keys []string) (result func() error) {
	if c == nil {
		return func() error { return nil }
	}
	// A call that is repeated may write nothing. Then this write is waited for, which comes after all that the first call wrote.
	p.Set(ctx, keys[0]+string(IndexConfirm), 1, 0)
	wait := p.Do(ctx, c.args...)
	return func() error {
		reply, err := wait.Result()
		if err != nil {
			return err
		}
		if counts, ok := reply.([]any); ok && len(counts) > 0 { // of WAITAOF: files and replicas that have synced
			reply = counts[0]
		}
		if n, ok := reply.(int64); !ok || n < 1 {
			return errUnconfirmed
		}
		return nil
	}
}

// errUnconfirmed says that a write was made, but may still be lost.
var errUnconfirmed = farm.Errorf(farm.CodeUnavailable, "The record store did not confirm in time that the write is safe. Repeat the request, with the same Idempotency-Key if it has one.")

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

// batcher sends together what is ready at the same time: values that come while one batch is on its way are the next one. So a single value waits for
// nothing, and many cost few round trips. It is safe for concurrent use.
type batcher[T any] struct {
	send  func(context.Context, []T) error
	limit int
	room  chan struct{} // has a value for each that waits or is on its way

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
func newBatcher[T any](limit, pending int, send func(context.Context, []T) error) *batcher[T] {
	return &batcher[T]{send: send, limit: limit, room: make(chan struct{}, pending)}
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
		n := min(len(b.waiting), b.limit)
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

package db

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// held counts the round trips of a client and holds each back until the test lets it go.
type held struct {
	mu      sync.Mutex
	batches []int         // commands of each round trip
	begun   chan struct{} // has a value for each
	release chan struct{}
}

func (h *held) pass(n int) {
	h.mu.Lock()
	h.batches = append(h.batches, n)
	h.mu.Unlock()
	h.begun <- struct{}{}
	<-h.release
}

func (h *held) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (h *held) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if name := cmd.Name(); name == "evalsha" {
			h.pass(1)
		}
		return next(ctx, cmd)
	}
}

func (h *held) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if cmds[0].Name() == "evalsha" {
			h.pass(len(cmds))
		}
		return next(ctx, cmds)
	}
}

func heldBatch(t *testing.T) (*scriptBatch, *held) {
	t.Helper()
	h := &held{begun: make(chan struct{}, 10*maxBatched), release: make(chan struct{})}
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	rdb.AddHook(h)
	return newBatch(rdb, nil), h
}

// waitFor waits until n calls wait for a batch.
func (b *scriptBatch) waitFor(t *testing.T, n int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		waiting := b.calls.queued()
		if waiting == n {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d calls wait, want %d", waiting, n)
		}
	}
}

// A single call is sent at once. Those that come while it is on its way are sent together, up to maxBatch, and each gets its own answer.
func TestCallsThatAreReadyTogetherAreOneBatch(t *testing.T) {
	t.Parallel()
	b, h := heldBatch(t)
	echo := redis.NewScript(`if ARGV[1] == 'bad' then return redis.error_reply('ERR bad') end return {ARGV[1]}`)
	var wg sync.WaitGroup
	call := func(text string) {
		wg.Go(func() {
			got, err := b.run(t.Context(), echo, nil, []any{text})
			if text == "bad" {
				if err == nil {
					t.Error("the error of a call is lost")
				}
				return
			}
			if err != nil || len(got) != 1 || got[0] != text {
				t.Errorf("the answer to %s is %v, %v", text, got, err)
			}
		})
	}
	call("first")
	<-h.begun
	call("bad")
	for i := range maxBatch {
		call(fmt.Sprint(i))
	}
	b.waitFor(t, maxBatch+1)
	close(h.release)
	wg.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.batches) < 3 || h.batches[0] != 1 || h.batches[1] != maxBatch {
		t.Errorf("round trips had %v calls, want 1, %d and the rest", h.batches, maxBatch)
	}
}

// At most maxBatched calls wait; the next caller waits for room, and may leave.
func TestBatchIsBounded(t *testing.T) {
	t.Parallel()
	b, h := heldBatch(t)
	script := redis.NewScript(`return {1}`)
	var wg sync.WaitGroup
	call := func() { wg.Go(func() { _, _ = b.run(t.Context(), script, nil, nil) }) }
	call()
	<-h.begun
	for range maxBatched - 1 {
		call()
	}
	b.waitFor(t, maxBatched-1)
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := b.run(ctx, script, nil, nil)
		left <- err
	}()
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("the call beyond the bound = %v", err)
	}
	b.waitFor(t, maxBatched-1)
	close(h.release)
	wg.Wait()
}

// A caller whose context ends does not end the calls of the others.
func TestCallerThatLeavesItsBatch(t *testing.T) {
	t.Parallel()
	b, h := heldBatch(t)
	script := redis.NewScript(`return {1}`)
	ctx, leave := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	answers := make(chan error, 3)
	call := func(ctx context.Context) {
		wg.Go(func() {
			_, err := b.run(ctx, script, nil, nil)
			answers <- err
		})
	}
	call(t.Context())
	<-h.begun
	call(ctx)
	b.waitFor(t, 1)
	call(t.Context())
	b.waitFor(t, 2)
	leave()
	if err := <-answers; !errors.Is(err, context.Canceled) {
		t.Errorf("the caller that left got %v", err)
	}
	close(h.release)
	for range 2 {
		if err := <-answers; err != nil {
			t.Errorf("another caller got %v", err)
		}
	}
	wg.Wait()
}

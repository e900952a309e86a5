package db

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/testbed"
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

func (h *held) hook(cmds []redis.Cmder, next func(...redis.Cmder) error) error {
	if cmds[0].Name() == "evalsha" {
		h.pass(len(cmds))
	}
	return next(cmds...)
}

func heldBatch(t *testing.T) (*scriptBatch, *held) {
	t.Helper()
	h := &held{begun: make(chan struct{}, 10*maxBatched), release: make(chan struct{})}
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	rdb.AddHook(testbed.Hook(h.hook))
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
		testbed.Require(t, !time.Now().After(end), "%d calls wait, want %d", waiting, n)
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
				testbed.Check(t, err != nil, "the error of a call is lost")
				return
			}
			testbed.Check(t, err == nil && len(got) == 1 && got[0] == text, "the answer to %s is %v, %v", text, got, err)
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
	err := <-left
	testbed.Check(t, errors.Is(err, context.Canceled), "the call beyond the bound = %v", err)
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
	err := <-answers
	testbed.Check(t, errors.Is(err, context.Canceled), "the caller that left got %v", err)
	close(h.release)
	for range 2 {
		err := <-answers
		testbed.Check(t, err == nil, "another caller got %v", err)
	}
	wg.Wait()
}

// bad is a value whose batch fails.
const bad = 7

var errBad = errors.New("bad")

// sent is the batches that were sent; each waits until the test releases it.
type sent struct {
	mu      sync.Mutex
	batches [][]int
	release chan struct{}
}

func (s *sent) send(_ context.Context, values []int) error {
	s.mu.Lock()
	s.batches = append(s.batches, slices.Clone(values))
	s.mu.Unlock()
	<-s.release
	if slices.Contains(values, bad) {
		return errBad
	}
	return nil
}

// A single value is sent at once. Those that come meanwhile are sent together, in order, at most so many at once; beyond the bound callers wait
// for room, and a caller that leaves takes none.
func TestBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const limit, pending = 3, 6
		s := &sent{release: make(chan struct{})}
		b := newBatcher(limit, pending, s.send)
		var wg sync.WaitGroup
		do := func(n int) {
			wg.Go(func() {
				err := b.do(t.Context(), n)
				testbed.Check(t, errors.Is(err, errBad) == (n == bad), "value %d: %v", n, err)
			})
			synctest.Wait()
		}
		for n := range pending { // the first is on its way, the others wait
			do(n)
		}
		testbed.Diff(t, "values wait", pending-1, b.queued())
		ctx, leave := context.WithCancelCause(t.Context())
		why := errors.New("left")
		wg.Go(func() {
			err := b.do(ctx, 100)
			testbed.Check(t, errors.Is(err, why), "a caller that left got %v", err)
		})
		do(pending)
		testbed.Diff(t, "values wait beyond the bound", pending-1, b.queued())
		leave(why)
		for range 3 {
			synctest.Wait()
			s.release <- struct{}{}
		}
		wg.Wait()
		do(bad) // and the next one finds room
		s.release <- struct{}{}
		wg.Wait()
		want := [][]int{{0}, {1, 2, 3}, {4, 5, 6}, {bad}}
		testbed.Check(t, slices.EqualFunc(s.batches, want, slices.Equal), "batches %v, want %v", s.batches, want)
		testbed.Diff(t, "values still wait", 0, b.queued())
	})
}

// A caller that leaves while its value waits does not end the calls of others, and its value is sent.
func TestCallerLeavesItsBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &sent{release: make(chan struct{})}
		b := newBatcher(8, 8, s.send)
		ctx, leave := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for n, ctx := range []context.Context{t.Context(), ctx, t.Context()} {
			wg.Go(func() {
				err := b.do(ctx, n)
				testbed.Check(t, (err != nil) == (n == 1), "value %d: %v", n, err)
			})
			synctest.Wait()
		}
		leave()
		synctest.Wait()
		close(s.release)
		wg.Wait()
		want := [][]int{{0}, {1, 2}}
		testbed.Check(t, slices.EqualFunc(s.batches, want, slices.Equal), "batches %v, want %v", s.batches, want)
	})
}

package db

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
)

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
				if err := b.do(t.Context(), n); errors.Is(err, errBad) != (n == bad) {
					t.Errorf("value %d: %v", n, err)
				}
			})
			synctest.Wait()
		}
		for n := range pending { // the first is on its way, the others wait
			do(n)
		}
		if b.queued() != pending-1 {
			t.Errorf("%d values wait, want %d", b.queued(), pending-1)
		}
		ctx, leave := context.WithCancelCause(t.Context())
		why := errors.New("left")
		wg.Go(func() {
			if err := b.do(ctx, 100); !errors.Is(err, why) {
				t.Errorf("a caller that left got %v", err)
			}
		})
		do(pending)
		if b.queued() != pending-1 {
			t.Errorf("%d values wait beyond the bound, want %d", b.queued(), pending-1)
		}
		leave(why)
		for range 3 {
			synctest.Wait()
			s.release <- struct{}{}
		}
		wg.Wait()
		do(bad) // and the next one finds room
		s.release <- struct{}{}
		wg.Wait()
		if want := [][]int{{0}, {1, 2, 3}, {4, 5, 6}, {bad}}; !slices.EqualFunc(s.batches, want, slices.Equal) {
			t.Errorf("batches %v, want %v", s.batches, want)
		}
		if b.queued() != 0 {
			t.Errorf("%d values still wait", b.queued())
		}
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
				if err := b.do(ctx, n); (err != nil) != (n == 1) {
					t.Errorf("value %d: %v", n, err)
				}
			})
			synctest.Wait()
		}
		leave()
		synctest.Wait()
		close(s.release)
		wg.Wait()
		if want := [][]int{{0}, {1, 2}}; !slices.EqualFunc(s.batches, want, slices.Equal) {
			t.Errorf("batches %v, want %v", s.batches, want)
		}
	})
}

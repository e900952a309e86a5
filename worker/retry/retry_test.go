package retry_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/worker/retry"
)

var (
	errDown  = farm.Errorf(farm.CodeUnavailable, "down")
	errOther = errors.New("refused")
	errRedis = farm.Wrap(store.ErrNoAnswer, farm.CodeUnavailable, "away")
	errFull  = farm.Wrap(blob.ErrFull, farm.CodeUnavailable, "full")
	errS3    = farm.Wrap(blob.ErrNoAnswer, farm.CodeUnavailable, "away")
)

func TestDo(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answers []error // of the tries; the last one repeats
		limit   time.Duration
		tries   int
		want    error
	}{
		"Succeeds":         {[]error{nil}, time.Minute, 1, nil},
		"ComesBack":        {[]error{errDown, errDown, nil}, time.Minute, 3, nil},
		"OtherError":       {[]error{errOther}, time.Minute, 1, errOther},
		"OtherErrorLater":  {[]error{errDown, errOther}, time.Minute, 2, errOther},
		"StoreIsFull":      {[]error{errDown, errFull, nil}, time.Minute, 2, errFull},
		"StaysDown":        {[]error{errDown}, time.Second, 5, errDown}, // after 0, 0.1, 0.3, 0.7 and 1.5 s
		"PausesAreBounded": {[]error{errDown}, time.Minute, 35, errDown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				tries := 0
				err := retry.Writes{Limit: c.limit}.Do(t.Context(), func(context.Context) error {
					tries++
					return c.answers[min(tries, len(c.answers))-1]
				})
				testbed.Check(t, tries == c.tries && errors.Is(err, c.want), "%d tries and %v, want %d and %v", tries, err, c.tries, c.want)
			})
		})
	}
}

// An upload may take longer than the limit before its first failure.
func TestDoCountsFromTheFirstFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		err := retry.Writes{Limit: time.Minute}.Do(t.Context(), func(context.Context) error {
			if tries++; tries == 1 {
				time.Sleep(3 * time.Minute)
				return errDown
			}
			return nil
		})
		testbed.Check(t, err == nil && tries == 2, "%d tries and %v, want 2 and success", tries, err)
	})
}

// A context that ends during a pause gives its cause.
func TestDoEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancelCause(t.Context())
	err := retry.Writes{Limit: time.Hour}.Do(ctx, func(context.Context) error {
		stop(errOther)
		return errDown
	})
	testbed.Check(t, errors.Is(err, errOther), "Do = %v, want the cause", err)
	got := retry.Cause(ctx, errDown)
	testbed.Check(t, errors.Is(got, errOther), "Cause = %v, want that of the context", got)
	got = retry.Cause(ctx, nil)
	testbed.Check(t, got == nil, "Cause of no error = %v", got)
	detached, cancel := retry.Detached(ctx)
	defer cancel()
	testbed.Check(t, detached.Err() == nil, "the detached context ended with its parent")
}

// Redis is waited for as long as it takes; that time does not count against an object store that fails behind it.
func TestDoWaitsForRedis(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		err := retry.Writes{Limit: time.Minute}.Do(t.Context(), func(context.Context) error {
			switch past := time.Since(began); {
			case past < 24*time.Hour:
				return errRedis
			case past < 24*time.Hour+30*time.Second:
				return errS3
			default:
				return nil
			}
		})
		testbed.Check(t, err == nil, "Do = %v", err)
	})
}

// The limit counts for an outage of the object store: a write that comes late in it gets one try.
func TestOutageOfTheObjectStoreIsWaitedForOnce(t *testing.T) {
	t.Parallel()
	for silent, limit := range map[time.Duration]int{0: 35, time.Minute - time.Second: 35, time.Minute + time.Second: 1} {
		synctest.Test(t, func(t *testing.T) {
			tries := 0
			w := retry.Writes{Limit: time.Minute, Silent: func() time.Duration { return silent }}
			err := w.Do(t.Context(), func(context.Context) error { tries++; return errS3 })
			testbed.Check(t, tries == limit && errors.Is(err, errS3), "silent for %s: %d tries and %v, want %d", silent, tries, err, limit)
			tries = 0
			_ = w.Do(t.Context(), func(context.Context) error { tries++; return errDown }) // a sandbox's agent, for example
			testbed.Diff(t, fmt.Sprintf("silent for %s: tries of another service", silent), 35, tries)
		})
	}
}

// The commit of work that has happened goes on for a while after the worker has stopped.
func TestCommitOutlivesTheWorker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		job, end := context.WithCancel(t.Context())
		worker, stop := context.WithCancelCause(t.Context())
		ctx, done := retry.Commit(job, worker)
		defer done()
		end()
		time.Sleep(time.Hour)
		testbed.Require(t, ctx.Err() == nil, "the commit ended with its job")
		stop(errOther)
		time.Sleep(retry.CommitTimeout - time.Second)
		synctest.Wait()
		testbed.Require(t, ctx.Err() == nil, "the commit ended with the worker")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if !errors.Is(context.Cause(ctx), errOther) {
			t.Errorf("the commit ended with %v", context.Cause(ctx))
		}
	})
}

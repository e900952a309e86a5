package retry_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/worker/retry"
)

var (
	errDown  = farm.Errorf(farm.CodeUnavailable, "down")
	errOther = errors.New("refused")
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
		"StaysDown":        {[]error{errDown}, time.Second, 5, errDown}, // after 0, 0.1, 0.3, 0.7 and 1.5 s
		"PausesAreBounded": {[]error{errDown}, time.Minute, 35, errDown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				tries := 0
				err := retry.Do(t.Context(), c.limit, func(context.Context) error {
					tries++
					return c.answers[min(tries, len(c.answers))-1]
				})
				if tries != c.tries || !errors.Is(err, c.want) {
					t.Errorf("%d tries and %v, want %d and %v", tries, err, c.tries, c.want)
				}
			})
		})
	}
}

// An upload may take longer than the limit before its first failure.
func TestDoCountsFromTheFirstFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		err := retry.Do(t.Context(), time.Minute, func(context.Context) error {
			if tries++; tries == 1 {
				time.Sleep(3 * time.Minute)
				return errDown
			}
			return nil
		})
		if err != nil || tries != 2 {
			t.Errorf("%d tries and %v, want 2 and success", tries, err)
		}
	})
}

// A context that ends during a pause gives its cause.
func TestDoEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancelCause(t.Context())
	err := retry.Do(ctx, time.Hour, func(context.Context) error {
		stop(errOther)
		return errDown
	})
	if !errors.Is(err, errOther) {
		t.Errorf("Do = %v, want the cause", err)
	}
	if got := retry.Cause(ctx, errDown); !errors.Is(got, errOther) {
		t.Errorf("Cause = %v, want that of the context", got)
	}
	if got := retry.Cause(ctx, nil); got != nil {
		t.Errorf("Cause of no error = %v", got)
	}
	detached, cancel := retry.Detached(ctx)
	defer cancel()
	if detached.Err() != nil {
		t.Error("the detached context ended with its parent")
	}
}

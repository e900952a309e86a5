// Package retry repeats writes to Redis and to the object store while they do not answer, and provides contexts for writes
// that must be made after the job's own context has ended.
package retry

import (
	"context"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// CommitTimeout bounds a write that must be made even when the job's own time is over.
const CommitTimeout = 15 * time.Second

// Pauses between two tries: they double from the first to the longest.
const (
	firstPause = 100 * time.Millisecond
	maxPause   = 2 * time.Second
)

// Do calls write until it succeeds, fails with an error other than farm.CodeUnavailable, or has failed for as long as limit. The time
// begins with the first failure, so an upload that took longer than limit before it failed is tried again. It returns the last error of write, or the reason for which ctx ended.
func Do(ctx context.Context, limit time.Duration, write func(context.Context) error) error {
	var failing time.Time
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		err := write(ctx)
		if err == nil || farm.CodeOf(err) != farm.CodeUnavailable {
			return err
		}
		if failing.IsZero() {
			failing = time.Now()
		}
		if time.Since(failing) > limit {
			return err
		}
		if err := Sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// Sleep waits for d. It returns early with the reason for which ctx ended.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Detached returns a context for clean-up and commits: it outlives ctx and ends after CommitTimeout. The caller calls cancel.
func Detached(ctx context.Context) (detached context.Context, cancel context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), CommitTimeout)
}

// Cause returns the reason for which ctx ended if it has, else err. A nil err stays nil.
func Cause(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

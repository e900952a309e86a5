// Package retry repeats writes to Redis and to the object store while they do not answer, and provides contexts for writes
// that must be made after the job's own context has ended.
package retry

import (
	"context"
	"errors"
	"time"

	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// CommitTimeout bounds a write that must be made even when the job's own time is over.
const CommitTimeout = 15 * time.Second

// Pauses between two tries: they double from the first to the longest.
const (
	firstPause = 100 * time.Millisecond
	maxPause   = 2 * time.Second
)

// Writes repeats writes while they fail with farm.CodeUnavailable.
//
// While Redis does not answer (store.ErrNoAnswer), a write is tried again until its context ends. What it records has happened, and only
// Redis can hold the record: to give up would report something else, or do the work twice.
//
// A write for which the object store has no room (blob.ErrFull) is not tried again: it would only hold up what waits behind it.
//
// Everything else is tried for Limit. For the object store, Limit counts for an outage and not for each write: a store that has been silent
// for that long gets one try of each write, so that it does not hold up the jobs of a sandbox one after the other.
type Writes struct {
	Limit  time.Duration
	Silent func() time.Duration // how long the object store has not answered; nil: not known
}

// Do calls write until it succeeds or is given up. It returns the last error of write, or the reason for which ctx ended. Limit begins
// with the first failure, so an upload that took longer before it failed is tried again.
func (w Writes) Do(ctx context.Context, write func(context.Context) error) error {
	var failing time.Time
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		err := write(ctx)
		switch {
		case err == nil || farm.CodeOf(err) != farm.CodeUnavailable || errors.Is(err, blob.ErrFull):
			return err
		case errors.Is(err, store.ErrNoAnswer):
			failing = time.Time{}
		case failing.IsZero():
			failing = time.Now()
		}
		if !failing.IsZero() && (time.Since(failing) > w.Limit || w.silent(err)) {
			return err
		}
		if err := Sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// silent reports whether err says that the object store does not answer, and has not for Limit.
func (w Writes) silent(err error) bool {
	return w.Silent != nil && errors.Is(err, blob.ErrNoAnswer) && w.Silent() > w.Limit
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

// Commit returns a context for the commit of work that has happened: it outlives ctx, and ends CommitTimeout after stop has ended. The
// caller calls cancel.
func Commit(ctx, stop context.Context) (commit context.Context, cancel func()) {
	commit, end := context.WithCancelCause(context.WithoutCancel(ctx))
	release := context.AfterFunc(stop, func() {
		_ = Sleep(commit, CommitTimeout)
		end(context.Cause(stop))
	})
	return commit, func() {
		release()
		end(nil)
	}
}

// Cause returns the reason for which ctx ended if it has, else err. A nil err stays nil.
func Cause(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

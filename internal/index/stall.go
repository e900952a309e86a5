package index

import (
	"context"
	"errors"
	"io"
	"time"
)

// errStalled is the cause of a request that ends because no byte arrived for too long.
var errStalled = errors.New("no byte arrived for too long")

// stall cancels a context if nothing happens for a while.
type stall struct {
	timer  *time.Timer
	every  time.Duration
	cancel context.CancelCauseFunc
}

// newStall returns a context that ends with errStalled unless moved is called at least once in every interval.
func newStall(ctx context.Context, every time.Duration) (context.Context, *stall) {
	ctx, cancel := context.WithCancelCause(ctx)
	return ctx, &stall{timer: time.AfterFunc(every, func() { cancel(errStalled) }), every: every, cancel: cancel}
}

func (s *stall) moved() { s.timer.Reset(s.every) }

// pause stops the timer while our own side is slow.
func (s *stall) pause() { s.timer.Stop() }

func (s *stall) end() {
	s.timer.Stop()
	s.cancel(context.Canceled)
}

// watched is a body whose reads have a stall timeout. Closing it ends its request.
type watched struct {
	io.ReadCloser
	ctx   context.Context // a reader has no other way to learn why it ended
	watch *stall
	count func(n int)
}

// Read reads; if the request was ended, the error is the cause.
func (w *watched) Read(p []byte) (int, error) {
	w.watch.moved()
	n, err := w.ReadCloser.Read(p)
	w.watch.pause()
	w.count(n)
	if err != nil && !errors.Is(err, io.EOF) {
		if cause := context.Cause(w.ctx); cause != nil {
			err = cause
		}
	}
	return n, err
}

// Close ends the request.
func (w *watched) Close() error {
	w.watch.end()
	return w.ReadCloser.Close()
}

package index

import (
	"context"
	"errors"
	"io"
	"time"
)

// errStalled is the cause of a request that ends because nothing came for too long.
var errStalled = errors.New("it stood still for too long")

// stall ends a context when nothing has moved for a while.
type stall struct {
	timer  *time.Timer
	every  time.Duration
	cancel context.CancelCauseFunc
}

// newStall gives a context that ends with errStalled unless moved is called at least every so long.
func newStall(ctx context.Context, every time.Duration) (context.Context, *stall) {
	ctx, cancel := context.WithCancelCause(ctx)
	return ctx, &stall{timer: time.AfterFunc(every, func() { cancel(errStalled) }), every: every, cancel: cancel}
}

func (s *stall) moved() { s.timer.Reset(s.every) }

// pause waits for our own side: that upstream stands still meanwhile is not its fault.
func (s *stall) pause() { s.timer.Stop() }

func (s *stall) end() {
	s.timer.Stop()
	s.cancel(context.Canceled)
}

// watched is a body whose reads are watched by a stall. Closing it ends the request that it belongs to.
type watched struct {
	io.ReadCloser
	ctx   context.Context //nolint:containedctx // a reader has no other way to learn why it ended
	watch *stall
	count func(n int)
}

// Read reads on; an error of a request that was ended says why.
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

package execution

import (
	"context"
	"sync/atomic"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/budget"
)

const (
	// readAhead is how many frames of an execution may wait in memory, if the worker has memory for them.
	readAhead = 32
	// valueWeight is how often a displayed value is in memory while it is handled: as it came, decoded, and on its way to the object store.
	valueWeight = 3
)

// frameReader reads frames ahead while earlier ones are handled. What it holds is charged to the worker's memory budget. A frame of
// ordinary size is read ahead only if there is memory for it; otherwise it is read once all earlier ones are handled, so a busy
// worker does not delay anyone's short output. A larger one waits for its turn.
type frameReader struct {
	frames chan frameItem
	cancel context.CancelFunc
	source frameSource
	done   chan struct{}

	memory  *budget.Budget
	tenant  string
	next    *budget.Hold  // of the frame that is being read
	ahead   atomic.Int64  // frames that are not handled yet
	drained chan struct{} // has a value when ahead may have become 0
}

// frameSource gives the frames of an execution. It calls admit with the size of each payload before it allocates it.
type frameSource interface {
	NextAdmitted(admit func(bytes int) error) (agent.Frame, error)
	Close() error
}

type frameItem struct {
	frame agent.Frame
	err   error
	hold  *budget.Hold
}

func newFrameReader(ctx context.Context, source frameSource, memory *budget.Budget, tenant string) *frameReader {
	ctx, cancel := context.WithCancel(ctx)
	r := &frameReader{
		frames: make(chan frameItem, readAhead), cancel: cancel, source: source, done: make(chan struct{}),
		memory: memory, tenant: tenant, drained: make(chan struct{}, 1),
	}
	go r.run(ctx)
	return r
}

func (r *frameReader) run(ctx context.Context) {
	defer close(r.done)
	defer close(r.frames)
	for {
		f, err := r.source.NextAdmitted(func(bytes int) error { return r.admit(ctx, int64(bytes)) })
		item := frameItem{frame: f, err: err, hold: r.next}
		r.next = nil
		if err != nil {
			item.hold.Release()
		}
		r.ahead.Add(1)
		select {
		case r.frames <- item:
		case <-ctx.Done():
			item.hold.Release()
			return
		}
		if err != nil || f.Type == agent.FrameFinal {
			return
		}
	}
}

// admit waits until a payload may be read.
func (r *frameReader) admit(ctx context.Context, bytes int64) (err error) {
	if bytes > budget.SmallBytes {
		r.next, err = r.memory.Acquire(ctx, r.tenant, bytes*valueWeight)
		return err
	}
	var ok bool
	if r.next, ok = r.memory.TryAcquire(r.tenant, bytes); ok {
		return nil
	}
	for r.ahead.Load() > 0 {
		select {
		case <-r.drained:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// handled gives back the memory of a frame.
func (r *frameReader) handled(item frameItem) {
	item.hold.Release()
	if r.ahead.Add(-1) > 0 {
		return
	}
	select {
	case r.drained <- struct{}{}:
	default:
	}
}

func (r *frameReader) stop() {
	r.cancel()
	_ = r.source.Close()
	<-r.done
	for item := range r.frames {
		item.hold.Release()
	}
}

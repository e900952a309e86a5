package inprocess

import (
	"context"
	"errors"
	"io"
	"iter"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
)

// eventPatience is how long a reader of events waits before it checks whether the caller is still there.
const eventPatience = 5 * time.Second

// eventReader reads events as they come. Next gives io.EOF at their end.
type eventReader interface {
	Next(ctx context.Context, patience time.Duration) ([]wire.Event, error)
	Close()
}

// follow yields the events of a reader until their end, or until ctx ends.
func follow[R eventReader](ctx context.Context, open func(context.Context) (R, error)) iter.Seq2[wire.Event, error] {
	return func(yield func(wire.Event, error) bool) {
		ctx, memory := budget.Renew(ctx) // the call holds its own, and reads its result meanwhile
		defer memory.Release()
		reader, err := open(ctx)
		if err != nil {
			yield(wire.Event{}, err)
			return
		}
		defer reader.Close()
		for ctx.Err() == nil {
			events, err := reader.Next(ctx, eventPatience)
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				yield(wire.Event{}, err)
				return
			}
			for _, event := range events {
				if !yield(event, nil) {
					return
				}
			}
			memory.Release()
		}
	}
}

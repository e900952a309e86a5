package bridge

import (
	"context"
	"iter"

	"github.com/sandfarm/sandfarm/api/wire"
)

func (r *remote) StartProcess(ctx context.Context, id string, request wire.ProcessRequest) (wire.Process, error) {
	made, err := r.c.StartProcess(ctx, id, request)
	return made, r.explain(err)
}

func (r *remote) ProcessEvents(ctx context.Context, id, process, after string) iter.Seq2[wire.Event, error] {
	return func(yield func(wire.Event, error) bool) {
		for event, err := range r.c.ProcessEvents(ctx, id, process, after) {
			if !yield(event, r.explain(err)) {
				return
			}
		}
	}
}

func (r *remote) EndProcess(ctx context.Context, id, process string) (wire.Process, error) {
	ended, err := r.c.EndProcess(ctx, id, process)
	return ended, r.explain(err)
}

func (r *remote) LinkPort(ctx context.Context, id string, request wire.PortLinkRequest) (wire.PortLink, error) {
	link, err := r.c.LinkPort(ctx, id, request)
	return link, r.explain(err)
}

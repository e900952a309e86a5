package dispatch

import (
	"context"
	"errors"
	"strings"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// stranded reports whether a create waits for a node without a worker: it claimed a member of that node's pool. Nodes are
// those with a worker.
func stranded(r *store.Route, nodes map[string]bool) bool {
	return r.State == farm.JobQueued && (r.Kind == farm.KindCreate || r.Kind == farm.KindRun) &&
		strings.HasPrefix(r.Queue, farm.NodeQueue("")) && !nodes[strings.TrimPrefix(r.Queue, farm.NodeQueue(""))]
}

// rescue sends a stranded create to every node's queue, where it starts a sandbox as if there were no pool.
func (d *Dispatcher) rescue(ctx context.Context, r *store.Route) error {
	err := d.store.Reroute(ctx, r.Ref, 0, farm.QueueCPU)
	if errors.Is(err, store.ErrFenced) { // its node has a worker again, or it has ended
		return nil
	}
	if err != nil {
		return err
	}
	again, err := d.store.Route(ctx, r.Ref)
	if err != nil || again.State != farm.JobQueued || again.Held {
		return err
	}
	return d.enqueue(ctx, again, taskID(r.Ref.ID, again.Attempt))
}

package dispatch

import (
	"context"
	"errors"
	"strings"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// stranded reports whether a create depends on a node without a worker: it claimed a member of that node's pool, or its sandbox was being
// started there. nodes are those with a live worker; the worker of a running job is known to be dead.
func stranded(r *store.Route, nodes map[string]bool) bool {
	if r.Kind != farm.KindCreate && r.Kind != farm.KindRun {
		return false
	}
	if r.State == farm.JobRunning {
		return r.SandboxState == farm.SandboxStarting && r.Node != "" && !nodes[r.Node]
	}
	return r.State == farm.JobQueued &&
		strings.HasPrefix(r.Queue, farm.NodeQueue("")) && !nodes[strings.TrimPrefix(r.Queue, farm.NodeQueue(""))]
}

// unassignNode takes a stranded create away from its node and enqueues it for any node, where it starts from the beginning. If the old worker
// comes back, what it made is void.
func (d *Dispatcher) unassignNode(ctx context.Context, r *store.Route) error {
	attempt, queue := 0, r.Queue
	if r.State == farm.JobRunning {
		attempt = r.Attempt
	}
	if queue == "" || strings.HasPrefix(queue, farm.NodeQueue("")) {
		queue = farm.QueueCPU
	}
	err := d.store.UnassignNode(ctx, r.Ref, attempt, queue)
	if errors.Is(err, store.ErrFenced) || errors.Is(err, store.ErrMove) { // its node has a worker again, or the job has ended
		return nil
	}
	if err != nil {
		return err
	}
	again, err := d.store.Route(ctx, r.Ref)
	if err != nil || again.State != r.State || again.Parked {
		return err
	}
	return d.enqueue(ctx, again, taskID(r.Ref.ID, again.Attempt))
}

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
	if !creates(*r) {
		return false
	}
	if r.State == farm.JobRunning {
		return r.SandboxState == farm.SandboxStarting && r.Node != "" && !nodes[r.Node]
	}
	return r.State == farm.JobQueued &&
		strings.HasPrefix(r.Queue, farm.NodeQueue("")) && !nodes[strings.TrimPrefix(r.Queue, farm.NodeQueue(""))]
}

// startElsewhere takes a create or a run whose sandbox is not ready away from its node, which no worker serves, and enqueues it for any node. It
// ends the job if a cancel was requested. It does nothing if a worker has the job again, or the sandbox is ready or has ended.
func (d *Dispatcher) startElsewhere(ctx context.Context, r *store.Route) error {
	how := store.Requeue{Attempt: r.Attempt, Elsewhere: true, Crashed: r.State == farm.JobRunning}
	err := d.store.Requeue(ctx, r.Ref, how)
	switch {
	case errors.Is(err, store.ErrCanceled):
		return d.Force(ctx, r.Ref, farm.JobCanceled, nil)
	case errors.Is(err, store.ErrFenced), errors.Is(err, store.ErrMove):
		return nil
	default:
		return err
	}
}

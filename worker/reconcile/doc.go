// Package reconcile brings the containers of this worker's engine and the records together, at the start and on a timer: orphaned
// containers are removed, sandboxes whose container is gone are marked as lost, sandboxes whose records were lost are restored,
// and reservations, leases and the warm pool are corrected.
package reconcile

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/telemetry"
	"github.com/sandfarm/sandfarm/worker/node"
	"github.com/sandfarm/sandfarm/worker/placement"
)

// Sandboxes ends sandboxes.
type Sandboxes interface {
	// Dismantle ends a sandbox whose record says closing: its jobs but exceptJob, its container, its record.
	Dismantle(ctx context.Context, s *farm.Sandbox, exceptJob string, end farm.SandboxState, reason string) error
	// Lose marks a sandbox as lost, ends its jobs but exceptJob, and removes what is left of it.
	Lose(ctx context.Context, s *farm.Sandbox, exceptJob, reason string)
}

// Usage counts what sandboxes use.
type Usage interface {
	SampleAll(ctx context.Context, boxes []*farm.Sandbox)
}

// Deps are the dependencies of a Reconciler. All fields except Metrics are required.
type Deps struct {
	Store     *store.Store
	Engine    *engine.Engine
	Node      *node.Node
	Placement *placement.Placer
	Sandboxes Sandboxes
	Usage     Usage
	Log       *slog.Logger
	Now       func() time.Time
	Metrics   prometheus.Registerer
}

// Reconciler compares containers with records.
type Reconciler struct {
	deps      Deps
	store     *store.Store
	engine    *engine.Engine
	node      *node.Node
	placement *placement.Placer
	sandboxes Sandboxes
	log       *slog.Logger
	contained prometheus.Gauge
}

// New makes a Reconciler.
func New(deps Deps) (*Reconciler, error) {
	r := &Reconciler{
		deps: deps, store: deps.Store, engine: deps.Engine, node: deps.Node, placement: deps.Placement, sandboxes: deps.Sandboxes, log: deps.Log,
		contained: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "sandfarm_worker_node_sandboxes", Help: "Containers of open sandboxes on the worker's node, at the last run of the reconciler.",
		}),
	}
	if deps.Metrics == nil {
		return r, nil
	}
	return r, telemetry.Register(deps.Metrics, r.contained)
}

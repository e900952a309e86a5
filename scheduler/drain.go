package scheduler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// drainAgain is how long a sandbox is left alone that a drain could not hibernate or close.
const drainAgain = time.Minute

// Drains are the drains of nodes and what is left on the nodes.
type Drains interface {
	Drains(ctx context.Context) ([]farm.Drain, error)
	OpenOnNode(ctx context.Context, node string) ([]*farm.Sandbox, error)
	SandboxRoutes(ctx context.Context, sandbox farm.Ref) ([]store.Route, error)
}

// drain looks at the nodes that are drained, and hibernates or closes their idle sandboxes where the drain asks for it.
func (s *Scheduler) drain(ctx context.Context) error {
	drains, err := s.deps.Drains.Drains(ctx)
	if err != nil {
		return fmt.Errorf("list drains: %w", err)
	}
	var workers []farm.Worker
	if len(drains) > 0 {
		if workers, err = s.deps.Ledger.Workers(ctx); err != nil {
			return fmt.Errorf("list workers: %w", err)
		}
	}
	left, states, tried := map[string]int{}, map[string]farm.DrainState{}, map[string]time.Time{}
	var errs []error
	for _, d := range drains {
		states[d.Node] = farm.DrainRuns // until it is known better
		open, err := s.deps.Drains.OpenOnNode(ctx, d.Node)
		if err != nil {
			errs = append(errs, fmt.Errorf("list sandboxes of drained node %s: %w", d.Node, err))
			continue
		}
		left[d.Node] = len(open)
		own := slices.DeleteFunc(slices.Clone(workers), func(w farm.Worker) bool { return w.Node != d.Node })
		states[d.Node] = farm.ProgressOfDrain(own, open).State
		for _, box := range open {
			at, known := s.drains.tried[box.ID]
			if known && time.Since(at) < drainAgain {
				tried[box.ID] = at
				continue
			}
			done, err := s.drainOne(ctx, d, workers, box)
			if done {
				tried[box.ID] = time.Now()
			}
			errs = append(errs, err)
		}
	}
	s.drains.set(left, states, tried)
	return errors.Join(errs...)
}

// drainOne hibernates or closes a sandbox of a drained node if the drain asks for it and the sandbox is idle, and reports whether it did.
func (s *Scheduler) drainOne(ctx context.Context, d farm.Drain, workers []farm.Worker, box *farm.Sandbox) (bool, error) {
	job := &farm.Job{
		ID: farm.NewID(farm.JobPrefix), Tenant: box.Tenant, SandboxID: box.ID, State: farm.JobQueued, CreatedAt: time.Now().UTC(),
	}
	request := &farm.Request{}
	switch {
	case box.State != farm.SandboxReady || box.OneShot || time.Since(box.LastUsedAt) < farm.DrainIdleAfter:
		return false, nil
	case d.Idle == farm.DrainClose:
		job.Kind, job.Inline = farm.KindClose, true
		request.Close = &farm.CloseRequest{Reason: "Its node is drained."}
	case d.Idle == farm.DrainHibernate && box.Spec.GPU == nil && hibernates(workers, box):
		job.Kind = farm.KindHibernate
	default:
		return false, nil
	}
	unfinished, err := s.deps.Drains.SandboxRoutes(ctx, box.Ref())
	if err != nil {
		return false, fmt.Errorf("list jobs of sandbox %s: %w", box.ID, err)
	}
	if len(unfinished) > 0 {
		return false, nil
	}
	_, err = s.deps.Jobs.Submit(ctx, store.Accept{Job: job, Request: request})
	if code := farm.CodeOf(err); err != nil && code != farm.CodeConflict && code != farm.CodeNotFound {
		return false, fmt.Errorf("%s sandbox %s of a drained node: %w", job.Kind, box.ID, err)
	}
	return true, nil
}

// hibernates reports whether a live worker of the sandbox's node can hibernate it.
func hibernates(workers []farm.Worker, box *farm.Sandbox) bool {
	return slices.ContainsFunc(workers, func(w farm.Worker) bool {
		return w.Node == box.Node && slices.Contains(w.Hibernates, box.Runtime)
	})
}

// drains are the drained nodes at the last look.
type drains struct {
	tried map[string]time.Time // when a sandbox was last to hibernate or close; used by the loop only

	mu    sync.Mutex
	left  map[string]int             // open sandboxes, by node
	state map[string]farm.DrainState // by node
	at    time.Time                  // of the look
}

func (d *drains) set(left map[string]int, states map[string]farm.DrainState, tried map[string]time.Time) {
	d.tried = tried
	d.mu.Lock()
	defer d.mu.Unlock()
	d.left, d.state, d.at = left, states, time.Now()
}

// states are the drains of all nodes, and when they were read. Those that are returned do not change.
func (d *drains) states() (map[string]farm.DrainState, time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state, d.at
}

func (d *drains) get() map[string]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.left)
}

// drainCollector reports what is left on drained nodes as the leader saw it last.
type drainCollector struct {
	drains  *drains
	leading func() bool
	left    *prometheus.Desc
}

func newDrainCollector(d *drains, leading func() bool) *drainCollector {
	return &drainCollector{drains: d, leading: leading, left: prometheus.NewDesc(
		"sandfarm_drained_node_sandboxes", "Open sandboxes of each node that is drained, as the scheduler that leads sees them.", []string{"node"}, nil)}
}

// Describe is part of prometheus.Collector.
func (c *drainCollector) Describe(ch chan<- *prometheus.Desc) { ch <- c.left }

// Collect is part of prometheus.Collector.
func (c *drainCollector) Collect(ch chan<- prometheus.Metric) {
	if !c.leading() {
		return // the leader reports it
	}
	for node, n := range c.drains.get() {
		ch <- prometheus.MustNewConstMetric(c.left, prometheus.GaugeValue, float64(n), node)
	}
}

var _ Drains = (*store.Store)(nil)

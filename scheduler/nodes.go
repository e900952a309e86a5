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

	"github.com/sandfarm/sandfarm/internal/dispatch"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// Nodes are the leases of nodes.
type Nodes interface {
	NodesInUse(ctx context.Context) (map[string][]string, error)
	CheckNodes(ctx context.Context, timeout time.Duration, live, used []string) ([]store.NodeLease, error)
	NodeLapsed(ctx context.Context, node string, timeout time.Duration) (bool, error)
	DropNodeLease(ctx context.Context, node string, timeout time.Duration) (bool, error)
}

// NodeEnder ends what is recorded on a node that is gone.
type NodeEnder interface {
	EndNode(ctx context.Context, e dispatch.NodeEnd) (dispatch.NodeEnded, error)
	CloseUnplaced(ctx context.Context, tenants []string) (int, error)
}

// nodesEvery is how often the leases are checked: much more often than they may lapse, so that the time without checks is known.
func (s *Scheduler) nodesEvery() time.Duration { return min(s.cfg.SweepEvery, s.cfg.NodeTimeout/5) }

// checkNodes ends every node whose lease has not been renewed for the timeout, and closes sandboxes that are closing without a node.
func (s *Scheduler) checkNodes(ctx context.Context) error {
	workers, err := s.deps.Ledger.Workers(ctx)
	if err != nil {
		return fmt.Errorf("list workers: %w", err)
	}
	var live, used []string
	for _, w := range workers {
		if !slices.Contains(live, w.Node) {
			live = append(live, w.Node)
		}
	}
	inUse, err := s.deps.Nodes.NodesInUse(ctx)
	if err != nil {
		return fmt.Errorf("list nodes that are in use: %w", err)
	}
	for node := range inUse {
		if node != "" {
			used = append(used, node)
		}
	}
	leases, err := s.deps.Nodes.CheckNodes(ctx, s.cfg.NodeTimeout, live, used)
	if err != nil {
		return fmt.Errorf("check leases of nodes: %w", err)
	}
	s.leases.set(leases)
	var errs []error
	for _, l := range leases {
		if l.Age >= s.cfg.NodeTimeout {
			errs = append(errs, s.endNode(ctx, l.Node))
		}
	}
	_, err = s.deps.End.CloseUnplaced(ctx, inUse[""])
	return errors.Join(append(errs, err, s.watchFleet(ctx, workers))...)
}

// endNode ends a node whose lease has lapsed. A pass that does not reach its end continues in the next round, of whichever scheduler leads then.
func (s *Scheduler) endNode(ctx context.Context, node string) error {
	gone := func(ctx context.Context) (bool, error) { return s.deps.Nodes.NodeLapsed(ctx, node, s.cfg.NodeTimeout) }
	out, err := s.deps.End.EndNode(ctx, dispatch.NodeEnd{
		Node: node, Reason: fmt.Sprintf("its node has had no worker for %s", s.cfg.NodeTimeout), Gone: gone,
	})
	s.seen.lost.Add(float64(len(out.Lost)))
	if err != nil {
		return fmt.Errorf("end node %s: %w", node, err)
	}
	if !out.Done {
		s.log.InfoContext(ctx, "the node has a worker again", "node", node, "lost", len(out.Lost), "closed", out.Closed, "requeued", out.Requeued)
		return nil
	}
	if dropped, err := s.deps.Nodes.DropNodeLease(ctx, node, s.cfg.NodeTimeout); err != nil || !dropped {
		return err
	}
	s.seen.ended.Inc()
	s.noteNodeEnded(ctx, node, len(out.Lost))
	s.log.WarnContext(ctx, "node ended: it had no worker for scheduler.node_timeout", "node", node,
		"lost", len(out.Lost), "closed", out.Closed, "requeued", out.Requeued)
	return nil
}

// nodeLeases are the leases at the last check.
type nodeLeases struct {
	mu     sync.Mutex
	leases []store.NodeLease
}

func (l *nodeLeases) set(leases []store.NodeLease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leases = leases
}

// leaseCollector reports the ages of the leases as the leader saw them last.
type leaseCollector struct {
	leases  *nodeLeases
	leading func() bool
	age     *prometheus.Desc
}

func newLeaseCollector(leases *nodeLeases, leading func() bool) *leaseCollector {
	return &leaseCollector{leases: leases, leading: leading, age: prometheus.NewDesc(
		"sandfarm_scheduler_node_lease_age_seconds", "Seconds since a worker of the node renewed its lease, as the scheduler that leads sees it. Beyond scheduler.node_timeout the node is ended.", []string{"node"}, nil)}
}

// Describe is part of prometheus.Collector.
func (c *leaseCollector) Describe(ch chan<- *prometheus.Desc) { ch <- c.age }

// Collect is part of prometheus.Collector.
func (c *leaseCollector) Collect(ch chan<- prometheus.Metric) {
	if !c.leading() {
		return // the leader reports it
	}
	c.leases.mu.Lock()
	defer c.leases.mu.Unlock()
	for _, l := range c.leases.leases {
		ch <- prometheus.MustNewConstMetric(c.age, prometheus.GaugeValue, l.Age.Seconds(), l.Node)
	}
}

var (
	_ Nodes     = (*store.Store)(nil)
	_ NodeEnder = (*dispatch.Dispatcher)(nil)
)

// drainAgain is how long a sandbox is left alone that a drain could not hibernate or close.
const drainAgain = time.Minute

// Drains are the drains of nodes and what is left on the nodes.
type Drains interface {
	Drains(ctx context.Context) ([]farm.Drain, error)
	OpenOnNode(ctx context.Context, node string) ([]*farm.Sandbox, error)
	HasJob(ctx context.Context, sandbox farm.Ref, kinds ...farm.JobKind) (bool, error)
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
	if busy, err := s.deps.Drains.HasJob(ctx, box.Ref()); err != nil || busy {
		return false, err
	}
	_, err := s.deps.Jobs.Submit(ctx, store.Accept{Job: job, Request: request})
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

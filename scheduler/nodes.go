package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandfarm/sandfarm/internal/dispatch"
	"github.com/sandfarm/sandfarm/internal/store"
)

// Nodes are the leases of nodes.
type Nodes interface {
	NodesInUse(ctx context.Context) (map[string][]string, error)
	CheckNodes(ctx context.Context, patience time.Duration, live, used []string) ([]store.NodeLease, error)
	NodeLapsed(ctx context.Context, node string, patience time.Duration) (bool, error)
	DropNodeLease(ctx context.Context, node string, patience time.Duration) (bool, error)
}

// NodeEnder ends what is recorded on a node that is gone.
type NodeEnder interface {
	EndNode(ctx context.Context, e dispatch.NodeEnd) (dispatch.NodeEnded, error)
	CloseUnplaced(ctx context.Context, tenants []string) (int, error)
}

// nodesEvery is how often the leases are checked: much more often than they may lapse, so that the time without checks is known.
func (s *Scheduler) nodesEvery() time.Duration { return min(s.cfg.SweepEvery, s.cfg.NodePatience/5) }

// checkNodes ends every node whose lease has not been renewed for the patience, and closes sandboxes that are closing without a node.
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
	leases, err := s.deps.Nodes.CheckNodes(ctx, s.cfg.NodePatience, live, used)
	if err != nil {
		return fmt.Errorf("check leases of nodes: %w", err)
	}
	s.leases.set(leases)
	var errs []error
	for _, l := range leases {
		if l.Age >= s.cfg.NodePatience {
			errs = append(errs, s.endNode(ctx, l.Node))
		}
	}
	_, err = s.deps.End.CloseUnplaced(ctx, inUse[""])
	return errors.Join(append(errs, err, s.watchFleet(ctx, workers))...)
}

// endNode ends a node whose lease has lapsed. A pass that does not reach its end continues in the next round, of whichever scheduler leads then.
func (s *Scheduler) endNode(ctx context.Context, node string) error {
	gone := func(ctx context.Context) (bool, error) { return s.deps.Nodes.NodeLapsed(ctx, node, s.cfg.NodePatience) }
	out, err := s.deps.End.EndNode(ctx, dispatch.NodeEnd{
		Node: node, Reason: fmt.Sprintf("its node has had no worker for %s", s.cfg.NodePatience), Gone: gone,
	})
	s.seen.lost.Add(float64(len(out.Lost)))
	if err != nil {
		return fmt.Errorf("end node %s: %w", node, err)
	}
	if !out.Done {
		s.log.InfoContext(ctx, "the node has a worker again", "node", node, "lost", len(out.Lost), "closed", out.Closed, "requeued", out.Requeued)
		return nil
	}
	if dropped, err := s.deps.Nodes.DropNodeLease(ctx, node, s.cfg.NodePatience); err != nil || !dropped {
		return err
	}
	s.seen.ended.Inc()
	s.noteNodeEnded(ctx, node, len(out.Lost))
	s.log.WarnContext(ctx, "node ended: it had no worker for scheduler.node_patience", "node", node,
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
		"sandfarm_scheduler_node_lease_age_seconds", "Seconds since a worker of the node renewed its lease, as the scheduler that leads sees it. Beyond scheduler.node_patience the node is ended.", []string{"node"}, nil)}
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

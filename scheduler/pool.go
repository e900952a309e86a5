package scheduler

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandfarm/sandfarm/internal/store"
)

// withoutWorker is how long a node may have no worker before its members are removed from the pool: a worker that is restarted keeps them.
// No create claims them in between.
const withoutWorker = time.Minute

// shelf is the part of the pool for one image on one node.
type shelf struct{ node, image string }

// stock counts the members of a shelf.
type stock struct{ ready, target int }

// pool is the state of the warm pool at the last run of the loop.
type pool struct {
	mu      sync.Mutex
	gone    map[string]time.Time // nodes that have members but no worker, and since when
	shelves map[shelf]stock
}

// checkPool compares the warm pool with the targets of the workers. Workers start and remove members; the scheduler removes the members of
// nodes without a worker, since no worker could serve a claim.
func (s *Scheduler) checkPool(ctx context.Context) error {
	workers, err := s.deps.Ledger.Workers(ctx)
	if err != nil {
		return fmt.Errorf("list workers: %w", err)
	}
	members, err := s.deps.Pool.Members(ctx)
	if err != nil {
		return fmt.Errorf("list members of the pool: %w", err)
	}
	nodes, shelves := map[string]bool{}, map[shelf]stock{}
	for _, w := range workers {
		nodes[w.Node] = true
		for _, p := range w.Pool {
			at := shelf{w.Node, p.Image}
			shelves[at] = stock{target: max(shelves[at].target, p.Target)} // workers of a node share one pool
		}
	}
	var errs []error
	for _, m := range s.pool.stranded(members, nodes, time.Now()) {
		err := s.deps.Pool.DropMember(ctx, m.ID, m.State)
		switch {
		case err == nil:
			s.seen.stranded.Inc()
			s.log.InfoContext(ctx, "pool member removed: its node has no worker", "sandbox_id", m.ID, "node", m.Node)
		case !errors.Is(err, store.ErrNoMember): // else its worker is back and changed it first
			errs = append(errs, fmt.Errorf("take member %s out of the pool: %w", m.ID, err))
		}
	}
	for _, m := range members {
		if m.State == store.MemberIdle && nodes[m.Node] {
			at := shelf{m.Node, m.Image}
			shelves[at] = stock{ready: shelves[at].ready + 1, target: shelves[at].target}
		}
	}
	s.pool.set(shelves)
	return errors.Join(errs...)
}

// stranded lists the unclaimed members of nodes that have had no worker for too long.
func (p *pool) stranded(members []store.Member, nodes map[string]bool, now time.Time) []store.Member {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.gone
	p.gone = map[string]time.Time{}
	var out []store.Member
	for _, m := range members {
		if nodes[m.Node] {
			continue
		}
		since, known := before[m.Node]
		if !known {
			since = now
		}
		p.gone[m.Node] = since
		if m.State != store.MemberClaimed && now.Sub(since) >= withoutWorker {
			out = append(out, m)
		}
	}
	return out
}

func (p *pool) set(shelves map[shelf]stock) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shelves = shelves
}

// poolCollector reports the pool as the leader saw it last.
type poolCollector struct {
	pool          *pool
	leading       func() bool
	ready, target *prometheus.Desc
}

func newPoolCollector(p *pool, leading func() bool) *poolCollector {
	labels := []string{"node", "image"}
	return &poolCollector{
		pool: p, leading: leading,
		ready:  prometheus.NewDesc("sandfarm_pool_ready", "Sandboxes of the warm pool that wait for a create, as the scheduler that leads sees them.", labels, nil),
		target: prometheus.NewDesc("sandfarm_pool_target", "Sandboxes that the warm pool is to have, by the settings of the workers.", labels, nil),
	}
}

// Describe is part of prometheus.Collector.
func (c *poolCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.ready
	ch <- c.target
}

// Collect is part of prometheus.Collector.
func (c *poolCollector) Collect(ch chan<- prometheus.Metric) {
	if !c.leading() {
		return // the leader reports it
	}
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	for at, s := range c.pool.shelves {
		ch <- prometheus.MustNewConstMetric(c.ready, prometheus.GaugeValue, float64(s.ready), at.node, at.image)
		ch <- prometheus.MustNewConstMetric(c.target, prometheus.GaugeValue, float64(s.target), at.node, at.image)
	}
}

var _ Pool = (*store.Store)(nil)

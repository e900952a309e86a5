package scheduler

import (
	"context"
	"fmt"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandfarm/sandfarm/internal/store"
)

// poolKey is the part of the pool for one image and runtime on one node. Runtime is empty for the default.
type poolKey struct{ node, image, runtime string }

// stock counts the members of a pool key.
type stock struct{ ready, target int }

// pool is the state of the warm pool at the last run of the loop.
type pool struct {
	mu     sync.Mutex
	stocks map[poolKey]stock
}

// checkPool compares the warm pool with the targets of the workers. Workers start and remove members. No create claims those of a node without
// a worker, and they leave the pool when the node is ended.
func (s *Scheduler) checkPool(ctx context.Context) error {
	workers, err := s.deps.Ledger.Workers(ctx)
	if err != nil {
		return fmt.Errorf("list workers: %w", err)
	}
	members, err := s.deps.Pool.Members(ctx)
	if err != nil {
		return fmt.Errorf("list members of the pool: %w", err)
	}
	nodes, stocks := map[string]bool{}, map[poolKey]stock{}
	for _, w := range workers {
		nodes[w.Node] = true
		for _, p := range w.Pool {
			at := poolKey{w.Node, p.Image, p.Runtime}
			stocks[at] = stock{target: max(stocks[at].target, p.Target)} // workers of a node share one pool
		}
	}
	for _, m := range members {
		if m.State == store.MemberIdle && nodes[m.Node] {
			at := poolKey{m.Node, m.Image, m.Runtime}
			stocks[at] = stock{ready: stocks[at].ready + 1, target: stocks[at].target}
		}
	}
	s.pool.set(stocks)
	return nil
}

func (p *pool) set(stocks map[poolKey]stock) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stocks = stocks
}

// poolCollector reports the pool as the leader saw it last.
type poolCollector struct {
	pool          *pool
	leading       func() bool
	ready, target *prometheus.Desc
}

func newPoolCollector(p *pool, leading func() bool) *poolCollector {
	labels := []string{"node", "image", "runtime"} // an empty runtime is the same to Prometheus as none
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
	for at, s := range c.pool.stocks {
		ch <- prometheus.MustNewConstMetric(c.ready, prometheus.GaugeValue, float64(s.ready), at.node, at.image, at.runtime)
		ch <- prometheus.MustNewConstMetric(c.target, prometheus.GaugeValue, float64(s.target), at.node, at.image, at.runtime)
	}
}

var _ Pool = (*store.Store)(nil)

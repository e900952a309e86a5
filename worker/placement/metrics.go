package placement

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandfarm/sandfarm/internal/telemetry"
)

// metrics count what happens to the warm pool, and read reservations when they are scraped.
type metrics struct {
	started, fillErrors, unusable prometheus.Counter
	left                          *prometheus.CounterVec
	reserved                      *reserved
}

func newMetrics(p *Placer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &metrics{
		started:    counter("sandfarm_worker_pool_started_total", "Sandboxes that were started for the warm pool."),
		fillErrors: counter("sandfarm_worker_pool_fill_errors_total", "Sandboxes for the warm pool that could not be started."),
		unusable:   counter("sandfarm_worker_pool_unusable_total", "Claimed sandboxes of the warm pool that had ended or were made from something else, so that another one was started."),
		left: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sandfarm_worker_pool_left_total", Help: "Sandboxes that left the warm pool without a claim, by reason: died, changed, old, surplus, room or stale.",
		}, []string{"reason"}),
		reserved: newReserved(p),
	}
	for _, reason := range []string{LeftDied, LeftChanged, LeftOld, LeftSurplus, LeftRoom, LeftStale} { // so that rate() counts the first one
		m.left.WithLabelValues(reason)
	}
	return m
}

func (m *metrics) register(to prometheus.Registerer) error {
	if to == nil {
		return nil
	}
	return telemetry.Register(to, m.started, m.fillErrors, m.unusable, m.left, m.reserved)
}

// reserved reads the node's reservations when it is scraped.
type reserved struct {
	placer *Placer

	capacityBytes, reservedBytes *prometheus.Desc
	capacityCPUs, reservedCPUs   *prometheus.Desc
	poolAge                      *prometheus.Desc
}

func newReserved(p *Placer) *reserved {
	desc := func(name, help string) *prometheus.Desc { return prometheus.NewDesc(name, help, []string{"node"}, nil) }
	return &reserved{
		placer:        p,
		capacityBytes: desc("sandfarm_node_memory_capacity_bytes", "Memory that the worker's node has for sandboxes."),
		reservedBytes: desc("sandfarm_node_memory_promised_bytes", "Memory that is reserved for sandboxes of the worker's node."),
		capacityCPUs:  desc("sandfarm_node_cpus_capacity", "Cores that the worker's node has for sandboxes, its overcommit included."),
		reservedCPUs:  desc("sandfarm_node_cpus_promised", "Cores that are reserved for sandboxes of the worker's node."),
		poolAge:       desc("sandfarm_pool_oldest_seconds", "For how long the oldest sandbox of the node's warm pool has waited for a create; 0 when there is none."),
	}
}

// Describe is part of prometheus.Collector.
func (r *reserved) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{r.capacityBytes, r.reservedBytes, r.capacityCPUs, r.reservedCPUs, r.poolAge} {
		ch <- d
	}
}

// Collect is part of prometheus.Collector.
func (r *reserved) Collect(ch chan<- prometheus.Metric) {
	node, room := r.placer.gate.named()
	if node == "" {
		return // not measured yet
	}
	gauge := func(d *prometheus.Desc, v float64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, node)
	}
	const mib = 1 << 20
	gauge(r.capacityBytes, float64(room.Capacity.MemoryMB)*mib)
	gauge(r.reservedBytes, float64(room.Reserved.MemoryMB)*mib)
	gauge(r.capacityCPUs, room.Capacity.CPUs)
	gauge(r.reservedCPUs, room.Reserved.CPUs)
	gauge(r.poolAge, r.placer.pool.age(r.placer.deps.Now()).Seconds())
}

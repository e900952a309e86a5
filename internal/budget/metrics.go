package budget

import "github.com/prometheus/client_golang/prometheus"

// Collectors are the metrics of a budget.
func (b *Budget) Collectors() []prometheus.Collector {
	gauge := func(name, help string, get func(Stats) int64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(get(b.Stats())) })
	}
	return []prometheus.Collector{
		gauge("sandfarm_memory_budget_bytes", "Bytes that this process may hold for its callers at once (memory_budget_mb).", func(s Stats) int64 { return s.Size }),
		gauge("sandfarm_memory_budget_used_bytes", "Bytes that this process holds for its callers.", func(s Stats) int64 { return s.Used }),
		gauge("sandfarm_memory_budget_waiting_bytes", "Bytes that callers wait for.", func(s Stats) int64 { return s.Waiting }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "sandfarm_memory_budget_waits_total", Help: "Requests for memory that had to wait.",
		}, func() float64 { return float64(b.Stats().Waited) }),
	}
}

package placement

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

func TestMetricsOfReservations(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.placer()
	registry := prometheus.NewRegistry()
	workertest.Must(t, p.metrics.register(registry))
	gauges := func() map[string]float64 {
		families, err := registry.Gather()
		workertest.Must(t, err)
		if problems, err := promlint.NewWithMetricFamilies(families).Lint(); err != nil || len(problems) > 0 {
			t.Errorf("names: %v %v", problems, err)
		}
		values := map[string]float64{}
		for _, f := range families {
			values[f.GetName()] = f.GetMetric()[0].GetGauge().GetValue()
		}
		return values
	}
	if _, known := gauges()["sandfarm_node_cpus_capacity"]; known {
		t.Error("a node that was not measured has a capacity")
	}
	p.gate.mu.Lock()
	p.gate.node = workertest.Node
	p.gate.nodes = map[string]store.NodeCapacity{workertest.Node: {Capacity: farm.Capacity{MemoryMB: 4, CPUs: 8}, Reserved: farm.Capacity{MemoryMB: 1, CPUs: 0.5}}}
	p.gate.mu.Unlock()
	got := gauges()
	for name, want := range map[string]float64{
		"sandfarm_node_memory_capacity_bytes": 4 << 20, "sandfarm_node_memory_reserved_bytes": 1 << 20,
		"sandfarm_node_cpus_capacity": 8, "sandfarm_node_cpus_reserved": 0.5,
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
}

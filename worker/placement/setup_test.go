package placement

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

func TestMain(m *testing.M) { workertest.Main(m) }

// bundle is a farm; the test makes its placers.
type bundle struct {
	*workertest.Farm
	cfg Config
}

func setup(t *testing.T) *bundle {
	t.Helper()
	return &bundle{Farm: workertest.New(t), cfg: Config{
		UploadRetry: 5 * time.Second, Limits: farm.DefaultLimits(), MemoryOvercommit: 16, CPUOvercommit: 128, PoolFill: 2, PoolAge: time.Hour,
		CreateTimeout: time.Minute,
	}}
}

// placer makes a placer of a worker that is alive.
func (b *bundle) placer() *Placer {
	b.T.Helper()
	id := farm.NewID(farm.WorkerPrefix)
	b.Register(id)
	p, err := New(b.cfg, Deps{
		Store: b.Store, Engine: b.Engine, Node: b.NewNode(), WorkerID: id, Log: b.Log, Now: time.Now,
		Wake: func() {}, PoolFailed: func() {}, Base: b.T.Context(),
	})
	testbed.Must(b.T, err)
	b.T.Cleanup(p.Wait)
	return p
}

// measured makes a placer of a node of a size.
func (b *bundle) measured(memoryMB, cores int) *Placer {
	b.T.Helper()
	b.Fake.SetHost(memoryMB, cores)
	p := b.placer()
	testbed.Must(b.T, p.Measure(b.T.Context()))
	return p
}

// pooling makes a placer of a measured node whose settings ask for members of the warm pool.
func (b *bundle) pooling(memoryMB int, pool ...string) *Placer {
	b.T.Helper()
	b.cfg.Pool, b.cfg.MemoryOvercommit, b.cfg.CPUOvercommit = pool, 1, 100
	return b.measured(memoryMB, 4)
}

// member adds a ready member of the warm pool that a worker made.
func (b *bundle) member(p *Placer) store.Member {
	b.T.Helper()
	version, err := p.MemberVersion(b.T.Context(), "python", "")
	testbed.Must(b.T, err)
	return b.Member(p.node, p.deps.WorkerID, version, p.gate.size())
}

func TestMetricsOfReservations(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.placer()
	registry := prometheus.NewRegistry()
	testbed.Must(t, p.metrics.register(registry))
	gauges := func() map[string]float64 {
		families, err := registry.Gather()
		testbed.Must(t, err)
		problems, err := promlint.NewWithMetricFamilies(families).Lint()
		testbed.Check(t, err == nil && len(problems) == 0, "names: %v %v", problems, err)
		values := map[string]float64{}
		for _, f := range families {
			values[f.GetName()] = f.GetMetric()[0].GetGauge().GetValue()
		}
		return values
	}
	_, known := gauges()["sandfarm_node_cpus_capacity"]
	testbed.Check(t, !known, "a node that was not measured has a capacity")
	p.gate.mu.Lock()
	p.gate.node = workertest.Node
	p.gate.nodes = map[string]store.NodeCapacity{workertest.Node: {Capacity: farm.Capacity{MemoryMB: 4, CPUs: 8}, Reserved: farm.Capacity{MemoryMB: 1, CPUs: 0.5}}}
	p.gate.mu.Unlock()
	got := gauges()
	for name, want := range map[string]float64{
		"sandfarm_node_memory_capacity_bytes": 4 << 20, "sandfarm_node_memory_reserved_bytes": 1 << 20,
		"sandfarm_node_cpus_capacity": 8, "sandfarm_node_cpus_reserved": 0.5,
	} {
		testbed.Diff(t, name, want, got[name])
	}
}

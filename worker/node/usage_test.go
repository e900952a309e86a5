package node_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/worker/node"
)

// counters answers for containers by name; the others do not run.
type counters map[string]farm.ContainerUsage

func (c counters) usage(_ context.Context, s *farm.Sandbox, _ bool) (farm.ContainerUsage, bool, error) {
	id := s.Container
	if id == "silent" {
		return farm.ContainerUsage{}, false, errors.New("the engine does not answer")
	}
	u, ok := c[id]
	return u, ok, nil
}

type ledger struct {
	mu      sync.Mutex
	samples []store.Sample
}

func (l *ledger) AddUsage(_ context.Context, s store.Sample) (store.Usage, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.samples = append(l.samples, s)
	return store.Usage{CPUSeconds: 2, MemoryGBSeconds: 3, GPUSeconds: 4}, nil
}

func sampler(t *testing.T, c counters, l *ledger) (*node.Sampler, *prometheus.Registry) {
	t.Helper()
	metrics := prometheus.NewRegistry()
	s, err := node.NewSampler(node.SamplerDeps{
		Usage: c.usage, Records: l, Log: slog.New(slog.DiscardHandler), Base: t.Context(), Metrics: metrics,
	})
	testbed.Must(t, err)
	return s, metrics
}

// A sample has what the engine counted; sandboxes whose containers do not run or answer are left out.
func TestSamplesHaveTheEnginesCounters(t *testing.T) {
	t.Parallel()
	l := &ledger{}
	s, metrics := sampler(t, counters{"c1": {Container: "c1", CPU: 7 * time.Second, Memory: 5 << 20}}, l)
	var boxes []*farm.Sandbox
	for _, container := range []string{"c1", "gone", "silent"} {
		boxes = append(boxes, &farm.Sandbox{ID: "sbx_" + container, Tenant: "acme", Container: container, Spec: farm.SandboxSpec{GPU: &farm.GPU{Count: 2}}})
	}
	s.SampleAll(boxes)
	s.Wait()
	want := []store.Sample{{Sandbox: farm.Ref{Tenant: "acme", ID: "sbx_c1"}, Container: "c1", CPU: 7 * time.Second, MemoryKB: 5 << 10, GPUs: 2}}
	testbed.Diff(t, "samples", want, l.samples)
	for name, want := range map[string]float64{"sandfarm_usage_cpu_seconds_total": 2, "sandfarm_usage_memory_gb_seconds_total": 3, "sandfarm_usage_gpu_seconds_total": 4} {
		n, sum := series(t, metrics, name)
		testbed.Check(t, n == 1 && sum == want, "%s has %d series with %v together", name, n, sum)
	}
}

// Agents that stall delayed the worker's other work on its sandboxes by seconds for each. Rounds run beside it, one at a time.
func TestSamplesDelayNobody(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	stalled := make(chan struct{})
	s, err := node.NewSampler(node.SamplerDeps{
		Usage: func(context.Context, *farm.Sandbox, bool) (farm.ContainerUsage, bool, error) {
			asked.Add(1)
			<-stalled
			return farm.ContainerUsage{}, false, nil
		},
		Records: &ledger{}, Log: slog.New(slog.DiscardHandler), Base: t.Context(),
	})
	testbed.Must(t, err)
	boxes := make([]*farm.Sandbox, 10)
	for i := range boxes {
		boxes[i] = &farm.Sandbox{ID: fmt.Sprint("sbx_", i)}
	}
	s.SampleAll(boxes)
	s.SampleAll(boxes)
	close(stalled)
	s.Wait()
	if n := asked.Load(); n != 10 {
		t.Errorf("two rounds at once asked %d times about 10 sandboxes", n)
	}
	s.SampleAll(boxes)
	s.Wait()
	if n := asked.Load(); n != 20 {
		t.Errorf("after the next round %d times", n)
	}
}

// Agents of one tenant that stalled made rounds last for seconds for each, and later rounds were left out, also for other tenants.
func TestStalledAgentsDelayNoOtherTenantsSamples(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var asked [2]atomic.Int32
		stalled := make(chan struct{})
		s, err := node.NewSampler(node.SamplerDeps{
			Usage: func(_ context.Context, s *farm.Sandbox, _ bool) (farm.ContainerUsage, bool, error) {
				if s.Tenant == "acme" {
					asked[0].Add(1)
				} else {
					asked[1].Add(1)
					<-stalled
				}
				return farm.ContainerUsage{}, false, nil
			},
			Records: &ledger{}, Log: slog.New(slog.DiscardHandler), Base: t.Context(),
		})
		testbed.Must(t, err)
		boxes := []*farm.Sandbox{}
		for range 20 {
			boxes = append(boxes, &farm.Sandbox{Tenant: "stalls"})
		}
		boxes = append(boxes, &farm.Sandbox{Tenant: "acme"}, &farm.Sandbox{Tenant: "acme"})
		for round := range int32(3) {
			s.SampleAll(boxes)
			synctest.Wait()
			testbed.Check(t, asked[0].Load() == 2*(round+1) && asked[1].Load() == 4, "after round %d: acme's agents were asked %d times, those that stall %d times", round, asked[0].Load(), asked[1].Load())
		}
		close(stalled)
		s.Wait()
		testbed.Check(t, asked[1].Load() == 20, "of 20 sandboxes %d were sampled", asked[1].Load())
	})
}

// However many tenants there are, the metrics have a bounded number of series.
func TestTenantsAreBoundedInMetrics(t *testing.T) {
	t.Parallel()
	s, metrics := sampler(t, counters{"c1": {Container: "c1", CPU: time.Second}}, &ledger{})
	for i := range 1500 {
		s.Sample(t.Context(), &farm.Sandbox{ID: "sbx_1", Tenant: fmt.Sprint("tenant", i), Container: "c1"})
	}
	n, sum := series(t, metrics, "sandfarm_usage_cpu_seconds_total")
	testbed.Check(t, n == 1001 && sum == 3000, "there are %d series with %v together; want 1001 with 3000", n, sum)
}

// series counts the series of a counter and adds them up.
func series(t *testing.T, metrics *prometheus.Registry, name string) (n int, sum float64) {
	t.Helper()
	families, err := metrics.Gather()
	testbed.Must(t, err)
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			n, sum = n+1, sum+m.GetCounter().GetValue()
		}
	}
	return n, sum
}

package scheduler_test

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/scheduler"
)

// fakePool is a pool that fails while err is set.
type fakePool struct {
	mu      sync.Mutex
	members []store.Member
	err     error
}

func (p *fakePool) Members(context.Context, ...string) ([]store.Member, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.members), p.err
}

// gauges reads the pool's series by node and image.
func gauges(t *testing.T, registry *prometheus.Registry, name string) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, family := range families {
		if family.GetName() == name {
			for _, m := range family.GetMetric() {
				out[m.GetLabel()[1].GetValue()+"/"+m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue() // labels are sorted: image, node
			}
		}
	}
	return out
}

// The leader shows what is ready in the pool, without members of nodes that have no worker.
func TestPoolIsShown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		on := func(node string) farm.Worker {
			return farm.Worker{Node: node, Pool: []farm.PoolStock{{Image: "python", Target: 3}}}
		}
		f := &fake{kept: keptFake{workers: []farm.Worker{on("n1"), on("n1"), on("n2")}}}
		p := &fakePool{members: []store.Member{
			{ID: "a", Node: "n1", Image: "python", State: store.MemberIdle},
			{ID: "b", Node: "n2", Image: "python", State: store.MemberIdle},
			{ID: "c", Node: "n2", Image: "python", State: store.MemberClaimed},
			{ID: "d", Node: "n2", Image: "python", State: store.MemberStarting},
			{ID: "e", Node: "n1", Image: "node", State: store.MemberIdle},
		}}
		registry := prometheus.NewRegistry()
		s, err := scheduler.New(scheduler.Config{}, scheduler.Deps{
			Records: f, Ledger: f, Jobs: f, Tasks: tasks{f}, Blobs: f, Pool: p, Log: slog.New(slog.DiscardHandler), Metrics: registry,
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer s.Stop()
		time.Sleep(10 * time.Second)
		if diff := cmp.Diff(map[string]float64{"n1/python": 1, "n2/python": 1, "n1/node": 1}, gauges(t, registry, "sandfarm_pool_ready")); diff != "" {
			t.Errorf("ready (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(map[string]float64{"n1/python": 3, "n2/python": 3, "n1/node": 0}, gauges(t, registry, "sandfarm_pool_target")); diff != "" {
			t.Errorf("targets (-want +got):\n%s", diff)
		}

		f.set(func() { f.kept.workers = []farm.Worker{on("n1")} })
		time.Sleep(10 * time.Second)
		if diff := cmp.Diff(map[string]float64{"n1/python": 1, "n1/node": 1}, gauges(t, registry, "sandfarm_pool_ready")); diff != "" {
			t.Errorf("without a worker on n2, ready (-want +got):\n%s", diff)
		}
		p.mu.Lock()
		p.err = errTest
		p.mu.Unlock()
		time.Sleep(10 * time.Second)
		if n := value(t, registry, "sandfarm_scheduler_loop_errors_total", "pool"); n == 0 {
			t.Error("an error of the pool is not counted")
		}
		f.set(func() { f.owner, f.lease = "another", time.Now().Add(time.Hour) })
		time.Sleep(10 * time.Second)
		if got := gauges(t, registry, "sandfarm_pool_ready"); len(got) != 0 {
			t.Errorf("a scheduler that does not lead shows %v", got)
		}
	})
}

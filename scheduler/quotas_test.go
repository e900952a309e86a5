package scheduler_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/scheduler"
)

// driftingCounts are counts of which those of the tenant a are wrong once.
type driftingCounts struct {
	mu               sync.Mutex
	repaired, stored map[string]int
}

func (d *driftingCounts) RepairUse(_ context.Context, tenant string) (store.Drift, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.repaired[tenant]++
	switch {
	case tenant == "bad":
		return nil, errTest
	case tenant == "a" && d.repaired[tenant] == 1:
		return store.Drift{"memory_mb": 512, "running": -1}, nil
	default:
		return nil, nil
	}
}

func (d *driftingCounts) AddStored(_ context.Context, tenant string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stored[tenant]++
	return nil
}

// The scheduler repairs the counts of every tenant and says in a metric that they were wrong. A tenant that fails does not stop the others.
func TestDriftIsRepairedAndCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{tenants: []string{"bad", "a", "b"}}
		counts := &driftingCounts{repaired: map[string]int{}, stored: map[string]int{}}
		registry := prometheus.NewRegistry()
		s, err := scheduler.New(scheduler.Config{TrimEvery: 10 * time.Second}, scheduler.Deps{
			Records: f, Ledger: f, Jobs: f, Tasks: tasks{f}, Blobs: f, Quotas: counts, Log: slog.New(slog.DiscardHandler), Metrics: registry,
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer s.Stop()
		time.Sleep(time.Minute)
		for name, want := range map[string]float64{"memory_mb": 1, "running": 1, "sandboxes": 0, "cpus": 0, "gpus": 0} {
			if n := value(t, registry, "sandfarm_quota_drift_total", name); n != want {
				t.Errorf("drift of %s is counted %v times, want %v", name, n, want)
			}
		}
		counts.mu.Lock()
		defer counts.mu.Unlock()
		for _, tenant := range f.tenants {
			if counts.repaired[tenant] < 2 || counts.stored[tenant] < 2 {
				t.Errorf("tenant %s: compared %d times, stored bytes added %d times", tenant, counts.repaired[tenant], counts.stored[tenant])
			}
		}
	})
}

package scheduler_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/scheduler"
)

// The count of what is stored is corrected and reported. Objects that no record names are reported, and removed after the retention.
func TestStoredIsComparedWithTheTruth(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const hour = time.Hour
		now := time.Now()
		key := func(tenant, job, name string) string {
			return fmt.Sprintf("artifacts/%s/sbx_1/%s/art_%s/%s", tenant, job, name, name)
		}
		object := func(tenant, job, name string, age time.Duration) blob.Info {
			return blob.Info{Key: key(tenant, job, name), Size: 100, Modified: now.Add(-age)}
		}
		recorded := func(tenant, job string, names ...string) []farm.Artifact {
			var list []farm.Artifact
			for _, name := range names {
				list = append(list, farm.Artifact{Key: key(tenant, job, name), CreatedAt: now.Add(-60 * hour)})
			}
			return list
		}
		f := &fake{tenants: []string{"a", "bad", "b"}, kept: keptFake{
			drift: map[string]store.StoredDrift{"a": {Stored: store.Stored{Bytes: -30, Artifacts: 1}}, "b": {Stored: store.Stored{Kept: 5}}},
			artifacts: map[farm.Ref][]farm.Artifact{
				{Tenant: "a", ID: "job_1"}: recorded("a", "job_1", "x", "y", "gone"), {Tenant: "b", ID: "job_3"}: recorded("b", "job_3", "x"),
			},
			objects: []blob.Info{
				object("a", "job_1", "x", 300*hour), object("a", "job_1", "y", 300*hour), object("a", "job_1", "z", 60*hour),
				object("a", "job_2", "late", 47*hour), // its job may run
				object("a", "job_2", "old", 300*hour),
				object("b", "job_3", "x", hour), object("b", "job_3", "y", 49*hour),
				{Key: "artifacts/odd", Size: 1, Modified: now.Add(-300 * hour)},
			},
		}}
		s, registry := begin(t, f, scheduler.Config{}, nil)
		defer s.Stop()
		time.Sleep(time.Minute)
		get := func(name string) float64 { return value(t, registry, name, "") }
		got := []float64{
			value(t, registry, "sandfarm_quota_drift_total", "stored_mb"), get("sandfarm_scheduler_artifacts_orphaned_bytes"), get("sandfarm_scheduler_artifacts_missing"),
		}
		if diff := cmp.Diff([]float64{2, 200, 1}, got); diff != "" {
			t.Errorf("drifts, orphaned bytes, missing (-want +got):\n%s", diff)
		}
		var left []string
		f.set(func() {
			for _, o := range f.kept.objects {
				left = append(left, o.Key)
			}
		})
		want := []string{key("a", "job_1", "x"), key("a", "job_1", "y"), key("a", "job_1", "z"), key("a", "job_2", "late"), key("b", "job_3", "x"), key("b", "job_3", "y")}
		if diff := cmp.Diff(want, left); diff != "" {
			t.Errorf("objects (-want +got):\n%s", diff)
		}
		f.set(func() { f.kept.artifacts[farm.Ref{Tenant: "a", ID: "job_1"}] = recorded("a", "job_1", "x", "y", "z") })
		time.Sleep(hour)
		if orphaned, missing := get("sandfarm_scheduler_artifacts_orphaned_bytes"), get("sandfarm_scheduler_artifacts_missing"); orphaned != 100 || missing != 0 {
			t.Errorf("an hour later %v bytes are orphaned and %v artifacts are missing", orphaned, missing)
		}
	})
}

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

package scheduler_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
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
		testbed.Diff(t, "drifts, orphaned bytes, missing", []float64{2, 200, 1}, got)
		var left []string
		f.set(func() {
			for _, o := range f.kept.objects {
				left = append(left, o.Key)
			}
		})
		want := []string{key("a", "job_1", "x"), key("a", "job_1", "y"), key("a", "job_1", "z"), key("a", "job_2", "late"), key("b", "job_3", "x"), key("b", "job_3", "y")}
		testbed.Diff(t, "objects", want, left)
		f.set(func() { f.kept.artifacts[farm.Ref{Tenant: "a", ID: "job_1"}] = recorded("a", "job_1", "x", "y", "z") })
		time.Sleep(hour)
		if orphaned, missing := get("sandfarm_scheduler_artifacts_orphaned_bytes"), get("sandfarm_scheduler_artifacts_missing"); orphaned != 100 || missing != 0 {
			t.Errorf("an hour later %v bytes are orphaned and %v artifacts are missing", orphaned, missing)
		}
	})
}

// Counts whose repair takes too long leave time for the comparison of the bucket.
func TestLongRepairDoesNotStopTheComparison(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{tenants: []string{"endless"}, kept: keptFake{objects: []blob.Info{
			{Key: "artifacts/a/sbx_1/job_1/art_1/x", Size: 100, Modified: time.Now().Add(-60 * time.Hour)},
		}}}
		s, registry := begin(t, f, scheduler.Config{}, nil)
		defer s.Stop()
		time.Sleep(2 * time.Minute)
		testbed.Diff(t, "orphaned bytes", 100.0, value(t, registry, "sandfarm_scheduler_artifacts_orphaned_bytes", ""))
		testbed.Diff(t, "failed runs", 1.0, value(t, registry, "sandfarm_scheduler_loop_errors_total", "stored"))
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
		testbed.Must(t, err)
		testbed.Must(t, s.Start(t.Context()))
		defer s.Stop()
		time.Sleep(time.Minute)
		for name, want := range map[string]float64{"memory_mb": 1, "running": 1, "sandboxes": 0, "cpus": 0, "gpus": 0} {
			testbed.Diff(t, fmt.Sprintf("drift of %s is counted, times", name), want, value(t, registry, "sandfarm_quota_drift_total", name))
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

func TestTrimGoesThroughAllTenants(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{tenants: []string{"bad", "a", "b"}, kept: keptFake{over: map[string]store.Trimmed{"a": {Entries: 2, Jobs: 3}, "b": {Entries: 5}}}}
		s, registry := begin(t, f, scheduler.Config{TrimEvery: 10 * time.Second}, nil)
		defer s.Stop()
		time.Sleep(61 * time.Second)
		for kind, want := range map[string]float64{"entry": 7, "job": 3, "task": 0, "queue": 0} {
			if n := value(t, registry, "sandfarm_scheduler_records_trimmed_total", kind); n != want {
				t.Errorf("%v of kind %s, want %v", n, kind, want)
			}
		}
		runs, errs := value(t, registry, "sandfarm_scheduler_loop_runs_total", "trim"), value(t, registry, "sandfarm_scheduler_loop_errors_total", "trim")
		testbed.Diff(t, "callbacks given up", runs, value(t, registry, "sandfarm_scheduler_records_trimmed_total", "callback"))
		if runs < 6 || runs > 9 || errs != runs { // one tenant fails each time
			t.Errorf("%v runs and %v errors in a minute at one in 10 s", runs, errs)
		}
		if age := time.Since(f.keeps().before); age < 7*24*time.Hour || age > 7*24*time.Hour+11*time.Second {
			t.Errorf("archived tasks are kept for %s", age)
		}
	})
}

// A tenant whose records take all the time of each run keeps no queues and no callbacks from being trimmed: they came after the records.
func TestTrimOfSlowTenantKeepsOnlyRecords(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{tenants: []string{"slow", "a"}, kept: keptFake{queues: []string{"cpu", "node-gone"}}}
		s, registry := begin(t, f, scheduler.Config{TrimEvery: 10 * time.Second}, nil)
		defer s.Stop()
		time.Sleep(10 * time.Minute)
		testbed.Diff(t, "queues", []string{"cpu"}, f.keeps().queues)
		runs, dropped := value(t, registry, "sandfarm_scheduler_loop_runs_total", "trim"), value(t, registry, "sandfarm_scheduler_records_trimmed_total", "callback")
		testbed.Check(t, runs > 1 && dropped >= runs, "callbacks are given up %v times in %v runs", dropped, runs)
	})
}

// Jobs that are removed since Redis is half full are counted, also if the call fails in the middle.
func TestForgottenJobsAreCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{kept: keptFake{forgotten: []store.Forgotten{{Tenant: "a", Records: 3}, {Tenant: "b", Records: 4}}, forgetErr: errTest}}
		s, registry := begin(t, f, scheduler.Config{}, nil)
		defer s.Stop()
		time.Sleep(10 * time.Second)
		if n := value(t, registry, "sandfarm_scheduler_records_trimmed_total", "forgotten"); n != 7 {
			t.Errorf("%v jobs counted, want 7", n)
		}
		runs, errs := value(t, registry, "sandfarm_scheduler_loop_runs_total", "memory"), value(t, registry, "sandfarm_scheduler_loop_errors_total", "memory")
		if runs < 9 || runs > 13 || errs != runs {
			t.Errorf("%v runs and %v errors in 10 s at one in a second", runs, errs)
		}
	})
}

// A count of the memory of jobs that was wrong is reported.
func TestDriftOfJobMemoryIsCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{tenants: []string{"a", "b"}, kept: keptFake{memoryDrift: store.JobMemory{Finished: -1}}}
		s, registry := begin(t, f, scheduler.Config{}, nil)
		defer s.Stop()
		time.Sleep(time.Minute)
		if n := value(t, registry, "sandfarm_quota_drift_total", "job_memory"); n != 1 {
			t.Errorf("%v counted, want 1", n)
		}
	})
}

// Queues of nodes and of GPU models are removed once no worker serves them; queues of the farm never are.
func TestQueuesWithoutWorkersAreRemoved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{kept: keptFake{
			queues:  []string{"cpu", "control", "gpu", "gpu-a100", "gpu-h200", "node-gone", "node-here", "callbacks"},
			workers: []farm.Worker{{ID: "w1", Node: "here", Queues: []string{"cpu", "gpu", "gpu-h200", "node-here"}}},
		}}
		s, registry := begin(t, f, scheduler.Config{}, nil)
		defer s.Stop()
		left := func(want ...string) {
			t.Helper()
			f.mu.Lock()
			defer f.mu.Unlock()
			testbed.Diff(t, "queues", want, f.kept.queues)
		}
		time.Sleep(2 * time.Minute)
		left("cpu", "control", "gpu", "gpu-h200", "node-here", "callbacks")
		f.set(func() { f.kept.workers = nil })
		time.Sleep(2 * time.Minute)
		left("cpu", "control", "gpu", "callbacks")
		if n := value(t, registry, "sandfarm_scheduler_records_trimmed_total", "queue"); n != 4 {
			t.Errorf("%v queues counted", n)
		}
	})
}

// A scheduler that gains the lead runs its loops at once, the slow ones too.
func TestLoopsRunWhenTheLeadIsGained(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{tenants: []string{"a"}}
		first, _ := begin(t, f, scheduler.Config{}, nil)
		synctest.Wait()
		second, registry := begin(t, f, scheduler.Config{}, nil)
		defer second.Stop()
		time.Sleep(10 * time.Second)
		first.Stop()
		time.Sleep(3 * time.Second)
		for _, loop := range []string{"expire", "sweep", "retain", "unstage", "trim", "rules"} {
			if n := value(t, registry, "sandfarm_scheduler_loop_runs_total", loop); n == 0 {
				t.Errorf("%s has not run", loop)
			}
		}
	})
}

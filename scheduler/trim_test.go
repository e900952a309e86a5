package scheduler_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/scheduler"
)

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
		if n := value(t, registry, "sandfarm_scheduler_records_trimmed_total", "callback"); n != runs {
			t.Errorf("%v callbacks given up in %v runs", n, runs)
		}
		if runs < 6 || runs > 9 || errs != runs { // one tenant fails each time
			t.Errorf("%v runs and %v errors in a minute at one in 10 s", runs, errs)
		}
		if age := time.Since(f.keeps().before); age < 7*24*time.Hour || age > 7*24*time.Hour+11*time.Second {
			t.Errorf("archived tasks are kept for %s", age)
		}
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
			if diff := cmp.Diff(want, f.kept.queues); diff != "" {
				t.Errorf("queues (-want +got):\n%s", diff)
			}
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

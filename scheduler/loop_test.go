package scheduler_test

import (
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/scheduler"
)

// begin starts a scheduler with the settings, random source and registry of the test.
func begin(t *testing.T, f *fake, cfg scheduler.Config, random func() float64) (*scheduler.Scheduler, *prometheus.Registry) {
	t.Helper()
	registry := prometheus.NewRegistry()
	cfg.Settle = -1
	s, err := scheduler.New(cfg, scheduler.Deps{
		Records: f, Ledger: f, Jobs: f, Tasks: tasks{f}, Blobs: f, Log: slog.New(slog.DiscardHandler), Metrics: registry, Random: random,
	})
	testbed.Must(t, err)
	testbed.Must(t, s.Start(t.Context()))
	return s, registry
}

// value reads one series of a registry: a counter or a gauge.
func value(t *testing.T, registry *prometheus.Registry, name, loop string) float64 {
	t.Helper()
	families, err := registry.Gather()
	testbed.Must(t, err)
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			if loop == "" || len(m.GetLabel()) == 1 && m.GetLabel()[0].GetValue() == loop {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	t.Fatalf("no series %s of %q", name, loop)
	return 0
}

// Each loop runs exactly at its own interval less the random jitter.
func TestLoopsRunAtTheirIntervalsLessTheJitter(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		jitter, chance float64
		sweeps         []time.Duration // after the scheduler became the leader
		expires        float64         // in 10 s
	}{
		"None": {jitter: 0.5, chance: 0, sweeps: []time.Duration{4 * time.Second, 8 * time.Second}, expires: 10},
		"Half": {jitter: 0.5, chance: 0.5, sweeps: []time.Duration{3 * time.Second, 6 * time.Second, 9 * time.Second}, expires: 13},
		"Most": {jitter: 0.5, chance: 1, sweeps: []time.Duration{2 * time.Second, 4 * time.Second, 6 * time.Second, 8 * time.Second}, expires: 20},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := &fake{tenants: []string{"a"}}
				// Another scheduler leads at first: all loops wait, so their start times are known once this one leads.
				began := time.Now()
				s, registry := begin(t, f, scheduler.Config{ExpireEvery: time.Second, SweepEvery: 4 * time.Second, Jitter: c.jitter}, func() float64 { return c.chance })
				defer s.Stop()
				synctest.Wait()
				f.set(func() { f.steps = nil })
				before := value(t, registry, "sandfarm_scheduler_loop_runs_total", "expire")
				var at []time.Duration
				seen := 0
				for time.Since(began) < 10*time.Second-100*time.Millisecond {
					time.Sleep(10 * time.Millisecond)
					if n := count(f.done(), "sweep a"); n > seen {
						seen = n
						at = append(at, time.Since(began).Round(100*time.Millisecond))
					}
				}
				testbed.Diff(t, "sweeps", c.sweeps, at)
				if n := value(t, registry, "sandfarm_scheduler_loop_runs_total", "expire") - before; n < c.expires-1 || n > c.expires+1 {
					t.Errorf("%v runs of expire in 10 s, want %v", n, c.expires)
				}
			})
		})
	}
}

func TestMetricsOfLoops(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{
			tenants: []string{"bad", "good"},
			due:     map[string][]farm.Ref{"good": {{Tenant: "good", ID: "gone"}, {Tenant: "good", ID: "sbx_1"}}},
			expired: map[string][]farm.Artifact{"good": {{ID: "art_1", Tenant: "good", Key: "k"}}},
		}
		began := time.Now()
		s, registry := begin(t, f, scheduler.Config{}, nil)
		defer s.Stop()
		time.Sleep(2*time.Minute + time.Second)
		get := func(name, loop string) float64 { return value(t, registry, name, loop) }
		for _, loop := range []string{"expire", "sweep", "retain"} { // the tenant named bad fails in each of them
			runs, errs := get("sandfarm_scheduler_loop_runs_total", loop), get("sandfarm_scheduler_loop_errors_total", loop)
			if runs < 2 || errs != runs || get("sandfarm_scheduler_loop_last_success_timestamp_seconds", loop) != 0 {
				t.Errorf("%s: %v runs, %v errors, last success %v", loop, runs, errs, get("sandfarm_scheduler_loop_last_success_timestamp_seconds", loop))
			}
		}
		if errs, last := get("sandfarm_scheduler_loop_errors_total", "lead"), get("sandfarm_scheduler_loop_last_success_timestamp_seconds", "lead"); errs != 0 ||
			last < float64(began.Unix()+119) {
			t.Errorf("lead: %v errors, last success %v, began %v", errs, last, began.Unix())
		}
		got := []float64{
			get("sandfarm_scheduler_leads", ""), get("sandfarm_scheduler_sandboxes_expired_total", ""),
			get("sandfarm_scheduler_artifacts_removed_total", ""),
		}
		if want := []float64{1, 1, 1}; !slices.Equal(got, want) {
			t.Errorf("leads, expired and removed are %v, want %v", got, want)
		}
		testbed.Diff(t, "jobs requeued", float64(count(f.done(), "sweep good")), get("sandfarm_scheduler_jobs_requeued_total", ""))
		families, err := registry.Gather()
		testbed.Must(t, err)
		if problems, err := promlint.NewWithMetricFamilies(families).Lint(); err != nil || len(problems) > 0 {
			t.Errorf("names: %v %v", problems, err)
		}
	})
}

// A scheduler that does not lead only tries to take the lead, and its metrics show that it does not lead.
func TestMetricsOfAFollower(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{tenants: []string{"a"}}
		leader, _ := begin(t, f, scheduler.Config{}, nil)
		defer leader.Stop()
		synctest.Wait()
		s, registry := begin(t, f, scheduler.Config{}, nil)
		defer s.Stop()
		time.Sleep(10 * time.Second)
		if leads, sweeps, tries := value(t, registry, "sandfarm_scheduler_leads", ""), value(t, registry, "sandfarm_scheduler_loop_runs_total", "sweep"),
			value(t, registry, "sandfarm_scheduler_loop_runs_total", "lead"); leads != 0 || sweeps != 0 || tries < 8 {
			t.Errorf("leads %v, %v sweeps, %v tries for the lead", leads, sweeps, tries)
		}
	})
}

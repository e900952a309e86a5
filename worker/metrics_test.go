package worker

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"

	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// measured is a worker that was made and not started, and what a scrape of it gives.
func measured(t *testing.T) (*Worker, func() map[string]*dto.MetricFamily) {
	t.Helper()
	registry := prometheus.NewRegistry()
	w, err := New(Config{Slots: 7}, Deps{Log: slog.New(slog.DiscardHandler), Metrics: registry})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.stop(errStopping); w.links.closeAll() })
	return w, func() map[string]*dto.MetricFamily {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		if problems, err := promlint.NewWithMetricFamilies(families).Lint(); err != nil || len(problems) > 0 {
			t.Errorf("names: %v %v", problems, err)
		}
		byName := map[string]*dto.MetricFamily{}
		for _, f := range families {
			byName[f.GetName()] = f
		}
		return byName
	}
}

// series gives the value of one series: of a counter, of a gauge, or the sum of a histogram.
func series(f *dto.MetricFamily, labels ...string) float64 {
	for _, m := range f.GetMetric() {
		same := len(m.GetLabel()) == len(labels)
		for i, label := range m.GetLabel() {
			same = same && label.GetValue() == labels[i]
		}
		if same {
			return m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetHistogram().GetSampleSum()
		}
	}
	return -1
}

func TestMetricsOfJobs(t *testing.T) {
	t.Parallel()
	w, scrape := measured(t)
	created := time.Now()
	job := &farm.Job{Kind: farm.KindExecute, Attempt: 1, CreatedAt: created, StartedAt: created.Add(3 * time.Second)}
	w.seen.claimed(job)
	w.seen.ended(job, verdict{state: farm.JobCompleted, run: 2 * time.Second, upload: time.Second})
	taken := &farm.Job{Kind: farm.KindRun, Attempt: 2, CreatedAt: created, StartedAt: created.Add(-time.Second)} // a clock that went back
	w.seen.claimed(taken)
	w.seen.ended(taken, verdict{state: farm.JobLost})
	w.seen.stored(10, nil)
	w.seen.stored(0, errTest)
	got := scrape()
	for name, want := range map[string]float64{
		"completed": series(got["sandfarm_worker_jobs_total"], "execute", "completed") - 1,
		"lost":      series(got["sandfarm_worker_jobs_total"], "run", "lost") - 1,
		"failed":    series(got["sandfarm_worker_jobs_total"], "run", "failed"), // known before there is one
		"queue":     series(got["sandfarm_worker_job_queue_seconds"], "execute") - 3,
		"backwards": series(got["sandfarm_worker_job_queue_seconds"], "run"),
		"run":       series(got["sandfarm_worker_job_run_seconds"], "execute") - 2,
		"upload":    series(got["sandfarm_worker_job_upload_seconds"], "execute") - 1,
		"no upload": series(got["sandfarm_worker_job_upload_seconds"], "run") + 1,
		"takeovers": series(got["sandfarm_worker_takeovers_total"]) - 1,
		"stored":    series(got["sandfarm_worker_uploads_total"], "ok") - 1,
		"not":       series(got["sandfarm_worker_uploads_total"], "error") - 1,
		"bytes":     series(got["sandfarm_worker_upload_bytes_total"]) - 10,
	} {
		if want != 0 {
			t.Errorf("%s is off by %v", name, want)
		}
	}
	if n := len(got["sandfarm_worker_jobs_total"].GetMetric()); n != 50 {
		t.Errorf("%d series of jobs, want 10 kinds with 5 states each", n)
	}
}

func TestMetricsOfWhatAWorkerHolds(t *testing.T) {
	t.Parallel()
	w, scrape := measured(t)
	if got := scrape(); series(got["sandfarm_worker_job_slots"]) != 7 || got["sandfarm_node_cpus_capacity"] != nil {
		t.Errorf("before the start: %v slots, node %v", series(got["sandfarm_worker_job_slots"]), got["sandfarm_node_cpus_capacity"])
	}
	w.room.mu.Lock()
	w.room.node = "n1"
	w.room.nodes = map[string]store.NodeCapacity{"n1": {Capacity: farm.Capacity{MemoryMB: 4, CPUs: 8}, Reserved: farm.Capacity{MemoryMB: 1, CPUs: 0.5}}}
	w.room.mu.Unlock()
	got := scrape()
	for name, want := range map[string]float64{
		"sandfarm_node_memory_capacity_bytes": 4 << 20, "sandfarm_node_memory_promised_bytes": 1 << 20,
		"sandfarm_node_cpus_capacity": 8, "sandfarm_node_cpus_promised": 0.5,
	} {
		if v := series(got[name], "n1"); v != want {
			t.Errorf("%s is %v, want %v", name, v, want)
		}
	}
}

func TestMetricsOfLinksAndLoops(t *testing.T) {
	t.Parallel()
	w, scrape := measured(t)
	l, err := w.links.get(t.Context(), "sbx_1", func(context.Context) (*client.Client, error) { return nil, errTest })
	if err != nil {
		t.Fatal(err)
	}
	<-l.ready
	w.links.wg.Wait()
	hang := func(ctx context.Context) (*client.Client, error) { <-ctx.Done(); return nil, ctx.Err() }
	if _, err := w.links.get(t.Context(), "sbx_2", hang); err != nil {
		t.Fatal(err)
	}
	if n := series(scrape()["sandfarm_worker_agent_links"]); n != 1 {
		t.Errorf("%v streams", n)
	}
	w.links.drop("sbx_2") // by us: no error
	w.links.wg.Wait()
	step := w.seen.counted(loopReconcile, func(context.Context) error { return errTest })
	if err := step(t.Context()); !errors.Is(err, errTest) {
		t.Errorf("the step's error became %v", err)
	}
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	_ = step(stopped) // says nothing of the step
	got := scrape()
	if errs, loops, links := series(got["sandfarm_worker_agent_dial_errors_total"]), series(got["sandfarm_worker_loop_errors_total"], "reconcile"),
		series(got["sandfarm_worker_agent_links"]); errs != 1 || loops != 1 || links != 0 {
		t.Errorf("%v dial errors, %v errors of the loop, %v streams", errs, loops, links)
	}
}

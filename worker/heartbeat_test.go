package worker

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/worker/execution"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

// A row that cannot be decoded must not make the worker look dead.
func TestHeartbeatDoesNotNeedTheStatusOfTheNode(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.pooling(64<<10, "python=2")
	broken := b.member(w)
	key := ""
	for _, k := range b.Redis.Keys() {
		if strings.HasSuffix(k, "m:"+broken.ID) {
			key = k
		}
	}
	b.Redis.HSet(key, "doc", "{")
	testbed.Must(t, b.Store.RemoveWorker(t.Context(), w.id))
	err := w.refreshStatus(t.Context())
	testbed.Check(t, err != nil && strings.Contains(err.Error(), broken.ID), "refreshStatus = %v, want the error of the member", err)
	w.registered.Store(true)
	testbed.Must(t, w.beat(t.Context()))
	workers, err := b.Store.Workers(t.Context())
	testbed.Must(t, err)
	if !slices.ContainsFunc(workers, func(found farm.Worker) bool { return found.ID == w.id }) {
		t.Error("the worker is not registered")
	}
}

// While the worker prepares, and the engine hangs, the lease of the node is renewed all the same.
func TestLeaseIsRenewedWhileTheWorkerPrepares(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker()
	b.Fake.CloseClientConnections()
	b.Fake.Close()
	testbed.Must(t, b.Store.RemoveWorker(t.Context(), w.id))
	testbed.Must(t, w.beat(t.Context()))
	leases, err := b.Store.CheckNodes(t.Context(), time.Minute, nil, nil)
	testbed.Check(t, err == nil && len(leases) == 1 && leases[0].Node == w.node.ID(), "leases = %+v, %v", leases, err)
	workers, err := b.Store.Workers(t.Context())
	testbed.Check(t, err == nil && len(workers) == 0, "a worker that still prepares is registered: %+v, %v", workers, err)
}

// A worker whose registration is gone, or older than its last heartbeat, compares containers and records at once: Redis has lost data.
func TestHeartbeatNoticesLostRecords(t *testing.T) {
	t.Parallel()
	for what, lose := range map[string]func(b *bundle, w *Worker, old farm.Worker){
		"wiped": func(b *bundle, _ *Worker, _ farm.Worker) { b.Redis.FlushAll() },
		"restored from an older snapshot": func(b *bundle, _ *Worker, old farm.Worker) {
			b.Redis.FlushAll()
			testbed.Must(b.T, b.Store.Heartbeat(b.T.Context(), old))
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			w := b.worker()
			w.registered.Store(true)
			testbed.Must(t, w.beat(t.Context()))
			workers, err := b.Store.Workers(t.Context())
			testbed.Must(t, err)
			testbed.Must(t, w.beat(t.Context()))

			box := b.contained(w)
			lose(b, w, workers[0])
			testbed.Must(t, w.beat(t.Context()))
			w.background.Wait()
			b.SandboxIs(box, farm.SandboxReady)
		})
	}
}

// A worker learns by its heartbeat that its node is drained, and says so in the same one.
func TestHeartbeatTellsOfADrain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker()
	w.registered.Store(true)
	reported := func() bool {
		t.Helper()
		testbed.Must(t, w.beat(t.Context()))
		workers, err := b.Store.Workers(t.Context())
		testbed.Must(t, err)
		return slices.ContainsFunc(workers, func(found farm.Worker) bool { return found.ID == w.id && found.Draining })
	}
	testbed.Require(t, !reported() && w.placement.Accepts(farm.QueueCPU), "it drains from the start")
	_, err := b.Store.SetDrain(t.Context(), farm.Drain{Node: w.node.ID(), Since: time.Now()})
	testbed.Must(t, err)
	testbed.Check(t, reported() && !w.placement.Accepts(farm.QueueCPU), "it takes creates in spite of the drain")
	testbed.Must(t, b.Store.EndDrain(t.Context(), w.node.ID()))
	testbed.Check(t, !reported() && w.placement.Accepts(farm.QueueCPU), "it takes no creates after the drain")
}

func TestActivityIsBoundedAndStoredWhenItChanges(t *testing.T) {
	t.Parallel()
	var a activity
	var stored []farm.Minute
	writes := 0
	write := func(_ context.Context, m []farm.Minute) error {
		stored = m
		writes++
		return nil
	}
	start := time.Unix(60_000_000, 0)
	job := &farm.Job{CreatedAt: start, StartedAt: start.Add(30 * time.Millisecond)}
	for i := range 200 { // more than an hour of minutes with a job
		a.add(start.Add(time.Duration(i)*time.Minute), "cpu", job, execution.Outcome{State: farm.JobCompleted, Run: 5 * time.Millisecond})
	}
	end := start.Add(199 * time.Minute)
	a.add(end, "cpu", &farm.Job{CreatedAt: start, StartedAt: start.Add(50 * time.Millisecond)}, execution.Outcome{State: farm.JobTimedOut})
	a.add(end.Add(-5*time.Minute), "cpu", job, execution.Outcome{State: farm.JobCanceled}) // the clock was set back
	err := a.store(t.Context(), func(context.Context, []farm.Minute) error { return errors.New("no Redis") })
	testbed.Check(t, err != nil, "the error is lost")
	for range 2 {
		testbed.Must(t, a.store(t.Context(), write))
	}
	testbed.Check(t, writes == 1 && len(stored) == 60, "%d writes, %d minutes", writes, len(stored))
	want := farm.Minute{At: farm.MinuteOf(end), Ended: 3, Failed: 1, WaitMS: 110, MaxWaitMS: 50, RunMS: 5, Queues: map[string]int{"cpu": 3}}
	testbed.Diff(t, "", want, stored[len(stored)-1])
}

// measured makes a worker that is not started, and a function that scrapes it.
func measured(t *testing.T) (*Worker, func() map[string]*dto.MetricFamily) {
	t.Helper()
	registry := prometheus.NewRegistry()
	w, err := New(Config{Slots: 7}, Deps{Log: slog.New(slog.DiscardHandler), Metrics: registry})
	testbed.Must(t, err)
	t.Cleanup(w.Stop)
	return w, func() map[string]*dto.MetricFamily {
		families, err := registry.Gather()
		testbed.Must(t, err)
		problems, err := promlint.NewWithMetricFamilies(families).Lint()
		testbed.Check(t, err == nil && len(problems) == 0, "names: %v %v", problems, err)
		byName := map[string]*dto.MetricFamily{}
		for _, f := range families {
			byName[f.GetName()] = f
		}
		return byName
	}
}

// series returns the value of one series: of a counter, of a gauge, or the sum of a histogram.
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
	w.metrics.claimed(job)
	w.metrics.ended(job, execution.Outcome{State: farm.JobCompleted, Run: 2 * time.Second, Upload: time.Second})
	taken := &farm.Job{Kind: farm.KindRun, Attempt: 2, CreatedAt: created, StartedAt: created.Add(-time.Second)} // a clock that was set back
	w.metrics.claimed(taken)
	w.metrics.ended(taken, execution.Outcome{State: farm.JobLost})
	got := scrape()
	for name, want := range map[string]float64{
		"completed": series(got["sandfarm_worker_jobs_total"], "execute", "completed") - 1,
		"lost":      series(got["sandfarm_worker_jobs_total"], "run", "lost") - 1,
		"failed":    series(got["sandfarm_worker_jobs_total"], "run", "failed"), // exported before there is one
		"queue":     series(got["sandfarm_worker_job_queue_seconds"], "execute") - 3,
		"backwards": series(got["sandfarm_worker_job_queue_seconds"], "run"),
		"run":       series(got["sandfarm_worker_job_run_seconds"], "execute") - 2,
		"upload":    series(got["sandfarm_worker_job_upload_seconds"], "execute") - 1,
		"no upload": series(got["sandfarm_worker_job_upload_seconds"], "run") + 1,
		"takeovers": series(got["sandfarm_worker_takeovers_total"]) - 1,
		"slots":     series(got["sandfarm_worker_job_slots"]) - 7,
	} {
		testbed.Check(t, want == 0, "%s is off by %v", name, want)
	}
	testbed.Diff(t, "series of jobs", 60, len(got["sandfarm_worker_jobs_total"].GetMetric()))
}

func TestMetricsOfLoops(t *testing.T) {
	t.Parallel()
	w, scrape := measured(t)
	round := w.metrics.counted(loopReconcile, func(context.Context) error { return workertest.ErrTest })
	err := round(t.Context())
	testbed.Check(t, errors.Is(err, workertest.ErrTest), "the round's error became %v", err)
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	_ = round(stopped) // its error does not count
	n := series(scrape()["sandfarm_worker_loop_errors_total"], "reconcile")
	testbed.Check(t, n == 1, "%v errors of the loop, want 1", n)
}

// What a sandbox has used is counted while it runs and when it is closed, once: by the reconcilers of two workers, and by the last sample
// before its container is removed.
func TestUsageIsCountedOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w, other, box := b.worker(), b.worker(), b.Ready()
	b.agent(box, w)
	counted := func() float64 {
		t.Helper()
		days, err := b.Store.Usage(t.Context(), box.Tenant, 1)
		testbed.Must(t, err)
		if len(days) == 0 {
			return 0
		}
		return days[0].CPUSeconds
	}
	for _, each := range []*Worker{w, other, w} {
		testbed.Must(t, each.reconciler.Run(t.Context()))
		each.usage.Wait()
		if got := counted(); got != float64(workertest.CPUSeconds) {
			t.Errorf("after a run of a reconciler %v CPU seconds are counted, want %d", got, workertest.CPUSeconds)
		}
	}
	testbed.Must(t, w.handle(t.Context(), workertest.Task(b.CloseJob(box))))
	if s := b.Sandbox(box); s.State != farm.SandboxClosed || counted() != float64(workertest.CPUSeconds) {
		t.Errorf("the sandbox is %s and %v CPU seconds are counted", s.State, counted())
	}

	// One that is closed before any reconciler has seen it.
	short := b.Ready()
	b.agent(short, w)
	testbed.Must(t, w.handle(t.Context(), workertest.Task(b.CloseJob(short))))
	if got := counted(); got != 2*float64(workertest.CPUSeconds) {
		t.Errorf("with a short-lived sandbox %v CPU seconds are counted, want %d", got, 2*workertest.CPUSeconds)
	}
}

package worker

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/telemetry"
	"github.com/sandfarm/sandfarm/internal/tracing"
	"github.com/sandfarm/sandfarm/worker/execution"
)

// metrics count the jobs of a worker. Labels are kinds and states of jobs and names of loops.
type metrics struct {
	jobs               *prometheus.CounterVec
	queue, run, upload *prometheus.HistogramVec
	takeovers          prometheus.Counter
	requeued, moved    prometheus.Counter
	loopErrors         *prometheus.CounterVec
	callbacks          *prometheus.CounterVec
}

// Names of the loops, as metrics have them.
const (
	loopHeartbeat = "heartbeat"
	loopStatus    = "status"
	loopReconcile = "reconcile"
	loopPreload   = "preload"
	loopPool      = "pool"
)

// kinds are those of a worker's jobs.
func kinds() []farm.JobKind {
	return []farm.JobKind{
		farm.KindCreate, farm.KindRun, farm.KindExecute, farm.KindCommand, farm.KindInstall, farm.KindPackages, farm.KindFile,
		farm.KindInterrupt, farm.KindRestart, farm.KindHibernate, farm.KindResume, farm.KindClose,
	}
}

// newMetrics makes the metrics of a worker and registers them, if to is not nil.
func newMetrics(to prometheus.Registerer, w *Worker) (*metrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	seconds := func(name, help string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: telemetry.Seconds()}, []string{"kind"})
	}
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
	}
	m := &metrics{
		jobs:       vec("sandfarm_worker_jobs_total", "Jobs that this worker ended, by kind and end state.", "kind", "state"),
		queue:      seconds("sandfarm_worker_job_queue_seconds", "Seconds that a job waited until a worker claimed it, in the FIFO of its sandbox and in its queue."),
		run:        seconds("sandfarm_worker_job_run_seconds", "Seconds that a job ran in its sandbox."),
		upload:     seconds("sandfarm_worker_job_upload_seconds", "Seconds that the upload of a job's artifacts took."),
		takeovers:  counter("sandfarm_worker_takeovers_total", "Jobs that this worker took over from another one."),
		requeued:   counter("sandfarm_worker_jobs_returned_total", "Jobs that were requeued because the node had no room for them."),
		moved:      counter("sandfarm_worker_creations_moved_total", "Creates of sandboxes that were requeued because the engine did not answer."),
		loopErrors: vec("sandfarm_worker_loop_errors_total", "Rounds of the heartbeat, of the status that it reports, of the reconciler, of the reading of images and of the warm pool's maintenance that failed.", "loop"),
		callbacks:  vec("sandfarm_worker_callbacks_total", "Tries to deliver callbacks of finished jobs, by outcome: ok, error (it is tried again) or given_up.", "outcome"),
	}
	for _, kind := range kinds() { // so that rate() counts the first one
		for _, state := range farm.JobStates() {
			if state.Final() {
				m.jobs.WithLabelValues(string(kind), string(state))
			}
		}
	}
	for _, loop := range []string{loopHeartbeat, loopStatus, loopReconcile, loopPreload, loopPool} {
		m.loopErrors.WithLabelValues(loop)
	}
	for _, outcome := range []string{callbackOK, callbackError, callbackGivenUp} {
		m.callbacks.WithLabelValues(outcome)
	}
	if to == nil {
		return m, nil
	}
	return m, telemetry.Register(to, m.jobs, m.queue, m.run, m.upload, m.takeovers, m.requeued, m.moved, m.loopErrors, m.callbacks,
		gauge("sandfarm_worker_job_slots", "Jobs of one tenant that this worker can run at once. Several tenants have twice as many in all.", func() float64 { return float64(w.cfg.Slots) }),
		gauge("sandfarm_worker_jobs_running", "Jobs that this worker runs now.", func() float64 { jobs, _ := w.jobs.count(); return float64(jobs) }),
		gauge("sandfarm_worker_sandboxes_in_use", "Sandboxes in which this worker runs jobs now.", func() float64 { _, sandboxes := w.jobs.count(); return float64(sandboxes) }),
	)
}

// claimed counts a job that the worker claimed.
func (m *metrics) claimed(job *farm.Job) {
	if job.Attempt > 1 {
		m.takeovers.Inc()
	}
}

// ended counts a job whose end was committed.
func (m *metrics) ended(job *farm.Job, v execution.Outcome) {
	kind := string(job.Kind)
	m.jobs.WithLabelValues(kind, string(v.State)).Inc()
	if !job.StartedAt.IsZero() && !job.CreatedAt.IsZero() {
		m.queue.WithLabelValues(kind).Observe(max(job.StartedAt.Sub(job.CreatedAt), 0).Seconds())
	}
	if v.Run > 0 {
		m.run.WithLabelValues(kind).Observe(v.Run.Seconds())
	}
	if v.Upload > 0 {
		m.upload.WithLabelValues(kind).Observe(v.Upload.Seconds())
	}
}

// counted returns a round of a loop whose errors are counted.
func (m *metrics) counted(loop string, round func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		err := round(ctx)
		if err != nil && ctx.Err() == nil {
			m.loopErrors.WithLabelValues(loop).Inc()
		}
		return err
	}
}

// trace starts the span of a claimed job, as a child of the caller's span, and records the time that the job waited.
func (w *Worker) trace(ctx context.Context, job *farm.Job) (context.Context, func(error)) {
	if w.deps.Tracer == nil {
		return ctx, func(error) {}
	}
	ctx = tracing.Remote(ctx, job.Trace)
	if job.Attempt == 1 && !job.StartedAt.IsZero() {
		_, waited := w.deps.Tracer.Tracer(tracing.Name).Start(ctx, "queue", trace.WithTimestamp(job.CreatedAt), trace.WithSpanKind(trace.SpanKindConsumer))
		waited.End(trace.WithTimestamp(maxTime(job.StartedAt, job.CreatedAt)))
	}
	return tracing.Begin(ctx, w.deps.Tracer, "job "+string(job.Kind), trace.SpanKindConsumer,
		attribute.String("sandfarm.job_id", job.ID), attribute.String("sandfarm.sandbox_id", job.SandboxID),
		attribute.String("sandfarm.worker_id", w.id), attribute.Int("sandfarm.attempt", job.Attempt))
}

// maxTime is the later time: clocks of two machines differ.
func maxTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

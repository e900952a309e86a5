package worker

import (
	"context"
	"io"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/telemetry"
)

// metrics are a worker's figures. Labels are kinds and states of jobs and names of loops.
type metrics struct {
	jobs               *prometheus.CounterVec
	queue, run, upload *prometheus.HistogramVec
	takeovers          prometheus.Counter
	returned, moved    prometheus.Counter
	uploads            *prometheus.CounterVec
	uploadBytes        prometheus.Counter
	breaks, dialErrors prometheus.Counter
	loopErrors         *prometheus.CounterVec
	contained          prometheus.Gauge

	poolStarted, poolErrors, poolUnusable prometheus.Counter
	poolLeft                              *prometheus.CounterVec
}

// Names of the loops and outcomes, as metrics have them.
const (
	loopHeartbeat = "heartbeat"
	loopReconcile = "reconcile"
	loopPool      = "pool"
	outcomeOK     = "ok"
	outcomeError  = "error"
)

// kinds are those of a worker's jobs.
func kinds() []farm.JobKind {
	return []farm.JobKind{
		farm.KindCreate, farm.KindRun, farm.KindExecute, farm.KindCommand, farm.KindInstall, farm.KindPackages, farm.KindFile,
		farm.KindInterrupt, farm.KindRestart, farm.KindClose,
	}
}

func newMetrics(to prometheus.Registerer, w *Worker) (*metrics, error) {
	if to == nil {
		to = prometheus.NewRegistry() // nobody looks
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	seconds := func(name, help string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: telemetry.Seconds()}, []string{"kind"})
	}
	m := &metrics{
		jobs:         vec("sandfarm_worker_jobs_total", "Jobs that this worker ended, by kind and end state.", "kind", "state"),
		queue:        seconds("sandfarm_worker_job_queue_seconds", "Seconds that a job waited until a worker had it, the line of its sandbox included."),
		run:          seconds("sandfarm_worker_job_run_seconds", "Seconds that a job ran in its sandbox."),
		upload:       seconds("sandfarm_worker_job_upload_seconds", "Seconds that the artifacts of a job took to be stored."),
		takeovers:    counter("sandfarm_worker_takeovers_total", "Jobs that another worker had begun and this one went on with."),
		returned:     counter("sandfarm_worker_jobs_returned_total", "Jobs that were given back to their queue, since the node had no room for them."),
		moved:        counter("sandfarm_worker_creations_moved_total", "Creations of sandboxes that went back to their queue, since the engine did not answer."),
		uploads:      vec("sandfarm_worker_uploads_total", "Artifacts sent to the object store, each try, by outcome: ok or error.", "outcome"),
		uploadBytes:  counter("sandfarm_worker_upload_bytes_total", "Bytes of artifacts that the object store took."),
		breaks:       counter("sandfarm_worker_agent_link_breaks_total", "Streams to agents that broke, not closed by this worker."),
		dialErrors:   counter("sandfarm_worker_agent_dial_errors_total", "Streams to agents that could not be opened."),
		loopErrors:   vec("sandfarm_worker_loop_errors_total", "Runs of the heartbeat, the reconciler and the look at the warm pool that went wrong.", "loop"),
		poolStarted:  counter("sandfarm_worker_pool_started_total", "Sandboxes that were started for the warm pool."),
		poolErrors:   counter("sandfarm_worker_pool_fill_errors_total", "Sandboxes for the warm pool that could not be started."),
		poolUnusable: counter("sandfarm_worker_pool_unusable_total", "Claimed sandboxes of the warm pool that had ended or were made from something else, so that another one was started."),
		poolLeft:     vec("sandfarm_worker_pool_left_total", "Sandboxes that left the warm pool without a claim, by reason: died, changed, old, surplus, room or stale.", "reason"),
		contained: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "sandfarm_worker_node_sandboxes", Help: "Containers of open sandboxes on the worker's node, at the last look of the reconciler.",
		}),
	}
	for _, kind := range kinds() { // so that a rate knows their first one
		for _, state := range farm.JobStates() {
			if state.Final() {
				m.jobs.WithLabelValues(string(kind), string(state))
			}
		}
	}
	for _, outcome := range []string{outcomeOK, outcomeError} {
		m.uploads.WithLabelValues(outcome)
	}
	for _, reason := range []string{leftDied, leftChanged, leftOld, leftSurplus, leftRoom, leftStale} {
		m.poolLeft.WithLabelValues(reason)
	}
	for _, loop := range []string{loopHeartbeat, loopReconcile, loopPool} {
		m.loopErrors.WithLabelValues(loop)
	}
	return m, telemetry.Register(to, m.jobs, m.queue, m.run, m.upload, m.takeovers, m.returned, m.moved, m.uploads, m.uploadBytes,
		m.breaks, m.dialErrors, m.loopErrors, m.contained, m.poolStarted, m.poolErrors, m.poolUnusable, m.poolLeft, newStanding(w))
}

// claimed counts a job that the worker took.
func (m *metrics) claimed(job *farm.Job) {
	if job.Attempt > 1 {
		m.takeovers.Inc()
	}
}

// ended counts a job whose end was committed.
func (m *metrics) ended(job *farm.Job, v verdict) {
	kind := string(job.Kind)
	m.jobs.WithLabelValues(kind, string(v.state)).Inc()
	if !job.StartedAt.IsZero() && !job.CreatedAt.IsZero() {
		m.queue.WithLabelValues(kind).Observe(max(job.StartedAt.Sub(job.CreatedAt), 0).Seconds())
	}
	if v.run > 0 {
		m.run.WithLabelValues(kind).Observe(v.run.Seconds())
	}
	if v.upload > 0 {
		m.upload.WithLabelValues(kind).Observe(v.upload.Seconds())
	}
}

// stored counts an artifact that was sent.
func (m *metrics) stored(size int64, err error) {
	if err != nil {
		m.uploads.WithLabelValues(outcomeError).Inc()
		return
	}
	m.uploads.WithLabelValues(outcomeOK).Inc()
	m.uploadBytes.Add(float64(size))
}

// counted gives a step of a loop whose errors are counted.
func (m *metrics) counted(loop string, step func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		err := step(ctx)
		if err != nil && ctx.Err() == nil {
			m.loopErrors.WithLabelValues(loop).Inc()
		}
		return err
	}
}

// standing reads what a worker holds when it is scraped.
type standing struct {
	worker *Worker

	slots, running, sandboxes, links *prometheus.Desc
	capacityBytes, promisedBytes     *prometheus.Desc
	capacityCPUs, promisedCPUs       *prometheus.Desc
	poolAge                          *prometheus.Desc
}

func newStanding(w *Worker) *standing {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &standing{
		worker:        w,
		slots:         desc("sandfarm_worker_job_slots", "Jobs that this worker can run at once."),
		running:       desc("sandfarm_worker_jobs_running", "Jobs that this worker runs now."),
		sandboxes:     desc("sandfarm_worker_sandboxes_in_use", "Sandboxes in which this worker runs jobs now."),
		links:         desc("sandfarm_worker_agent_links", "Streams to agents that are open or being opened."),
		capacityBytes: desc("sandfarm_node_memory_capacity_bytes", "Memory that the worker's node has for sandboxes.", "node"),
		promisedBytes: desc("sandfarm_node_memory_promised_bytes", "Memory that is promised to sandboxes of the worker's node.", "node"),
		capacityCPUs:  desc("sandfarm_node_cpus_capacity", "Cores that the worker's node has for sandboxes, its overcommit included.", "node"),
		promisedCPUs:  desc("sandfarm_node_cpus_promised", "Cores that are promised to sandboxes of the worker's node.", "node"),
		poolAge:       desc("sandfarm_pool_oldest_seconds", "For how long the oldest sandbox of the node's warm pool has waited for a create; 0 when there is none.", "node"),
	}
}

// Describe is part of prometheus.Collector.
func (s *standing) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		s.slots, s.running, s.sandboxes, s.links, s.capacityBytes, s.promisedBytes, s.capacityCPUs, s.promisedCPUs,
		s.poolAge,
	} {
		ch <- d
	}
}

// Collect is part of prometheus.Collector.
func (s *standing) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	running, sandboxes := s.worker.runs.count()
	gauge(s.slots, float64(s.worker.cfg.Slots))
	gauge(s.running, float64(running))
	gauge(s.sandboxes, float64(sandboxes))
	gauge(s.links, float64(s.worker.links.count()))
	node, room := s.worker.room.named()
	if node == "" {
		return // not measured yet
	}
	const mib = 1 << 20
	gauge(s.capacityBytes, float64(room.Capacity.MemoryMB)*mib, node)
	gauge(s.promisedBytes, float64(room.Reserved.MemoryMB)*mib, node)
	gauge(s.capacityCPUs, room.Capacity.CPUs, node)
	gauge(s.promisedCPUs, room.Reserved.CPUs, node)
	gauge(s.poolAge, s.worker.pool.age(s.worker.now()).Seconds(), node)
}

// named is the room of this worker's node, and the node; "" before it was measured.
func (r *room) named() (string, store.NodeCapacity) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.node, r.nodes[r.node]
}

// count is how many streams there are.
func (ls *links) count() int {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return len(ls.open)
}

// put stores an artifact's bytes, and counts them.
func (w *Worker) put(ctx context.Context, a *farm.Artifact, r io.Reader, size int64) error {
	info, err := w.blobs.Put(ctx, a.Key, r, size, putOptions(a))
	a.Size, a.SHA256 = info.Size, info.SHA256
	w.seen.stored(info.Size, err)
	return err
}

package scheduler

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandfarm/sandfarm/internal/telemetry"
)

// metrics are the metrics of a scheduler. Their label is the name of a loop.
type metrics struct {
	runs, errors *prometheus.CounterVec
	seconds      *prometheus.HistogramVec
	success      *prometheus.GaugeVec
	expired      prometheus.Counter
	requeued     prometheus.Counter
	removed      prometheus.Counter
	aborted      prometheus.Counter
	trimmed      *prometheus.CounterVec
	ended, lost  prometheus.Counter
	drift        *prometheus.CounterVec

	orphaned, missing prometheus.Gauge
}

func newMetrics(to prometheus.Registerer, leading func() bool, p *pool, leases *nodeLeases, d *drains) (*metrics, error) {
	if to == nil {
		to = prometheus.NewRegistry() // it is never read
	}
	label := []string{"loop"}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	m := &metrics{
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sandfarm_scheduler_loop_runs_total", Help: "Runs of each periodic loop, including failed ones.",
		}, label),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sandfarm_scheduler_loop_errors_total", Help: "Failed runs of each periodic loop, also if they failed for one tenant only.",
		}, label),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "sandfarm_scheduler_loop_duration_seconds", Help: "Seconds that a run of each loop took.", Buckets: telemetry.Seconds(),
		}, label),
		success: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "sandfarm_scheduler_loop_last_success_timestamp_seconds", Help: "When a run of each loop last succeeded in this process; 0: never.",
		}, label),
		drift: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sandfarm_quota_drift_total", Help: "How often a count behind the quotas of a tenant differed from the records and was repaired, by count. It should stay 0.",
		}, []string{"count"}),
		expired:  counter("sandfarm_scheduler_sandboxes_expired_total", "Sandboxes that were closed because their time was up."),
		requeued: counter("sandfarm_scheduler_jobs_requeued_total", "Jobs that no queue or no living worker held, and that were given to the queues again."),
		removed:  counter("sandfarm_scheduler_artifacts_removed_total", "Artifacts that were removed because their time was up."),
		aborted:  counter("sandfarm_scheduler_uploads_aborted_total", "Uploads that were begun, never brought to an end, and removed."),
		ended:    counter("sandfarm_scheduler_nodes_ended_total", "Nodes that were ended because they had no worker for scheduler.node_patience."),
		lost:     counter("sandfarm_scheduler_nodes_sandboxes_lost_total", "Sandboxes that were lost with such a node."),
		orphaned: gauge("sandfarm_scheduler_artifacts_orphaned_bytes", "Bytes of objects of artifacts that no record names, when the bucket was last compared. They are removed after the retention."),
		missing:  gauge("sandfarm_scheduler_artifacts_missing", "Artifacts whose objects were missing when the bucket was last compared."),
		trimmed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sandfarm_scheduler_records_trimmed_total", Help: "Records removed because they were beyond their bounds, by kind.",
		}, []string{"kind"}),
	}
	for _, kind := range []string{trimmedEntries, trimmedJobs, trimmedTasks, trimmedQueues, trimmedDocuments, trimmedCallbacks, trimmedForgotten} {
		m.trimmed.WithLabelValues(kind)
	}
	for _, name := range loopNames() { // so that rate() counts the first run
		m.runs.WithLabelValues(name)
		m.errors.WithLabelValues(name)
		m.success.WithLabelValues(name)
	}
	for _, count := range []string{"sandboxes", "memory_mb", "cpus", "gpus", "running", driftNodes, driftStored, driftJobMemory} {
		m.drift.WithLabelValues(count)
	}
	leads := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sandfarm_scheduler_leads", Help: "1 while this scheduler is the leader, else 0. One of all schedulers leads.",
	}, func() float64 {
		if leading() {
			return 1
		}
		return 0
	})
	return m, telemetry.Register(to, m.runs, m.errors, m.seconds, m.success, m.expired, m.requeued, m.removed, m.aborted, m.trimmed, m.ended, m.lost, m.drift, m.orphaned, m.missing, leads,
		newPoolCollector(p, leading), newLeaseCollector(leases, leading), newDrainCollector(d, leading))
}

// ran counts a run of a loop.
func (m *metrics) ran(loop string, began, ended time.Time, err error) {
	m.runs.WithLabelValues(loop).Inc()
	m.seconds.WithLabelValues(loop).Observe(ended.Sub(began).Seconds())
	if err != nil {
		m.errors.WithLabelValues(loop).Inc()
		return
	}
	m.success.WithLabelValues(loop).Set(float64(ended.UnixMilli()) / 1000)
}

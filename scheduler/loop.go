package scheduler

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandfarm/sandfarm/internal/telemetry"
)

const (
	// stepTimeout bounds one step, so that a server that hangs does not block a loop forever.
	stepTimeout = time.Minute
	// unstageEvery is how often the loop looks for staged objects that were never fetched: there are few, and they are days old.
	unstageEvery = time.Hour
	// rulesEvery is how often the bucket's rules are checked, since an operator may change them.
	rulesEvery = 5 * time.Minute
	// storedEvery is how often what tenants store is compared with the truth, repairFor how long the counts of all tenants take at most, and
	// storedFor how long one comparison of the bucket takes; the next one continues from there.
	storedEvery = time.Hour
	repairFor   = stepTimeout / 3
	storedFor   = stepTimeout / 2
	// memoryEvery is how often the memory of Redis is read: a tenant that runs jobs as fast as it can fills a MiB in less.
	memoryEvery = time.Second
)

// Names of the loops in logs and metrics.
const (
	loopLead    = "lead"
	loopExpire  = "expire"
	loopSweep   = "sweep"
	loopRetain  = "retain"
	loopUnstage = "unstage"
	loopTrim    = "trim"
	loopRules   = "rules"
	loopPool    = "pool"
	loopQuotas  = "quotas"
	loopStored  = "stored"
	loopNodes   = "nodes"
	loopDrain   = "drain"
	loopMemory  = "memory"
)

func loopNames() []string {
	return []string{loopLead, loopExpire, loopSweep, loopRetain, loopUnstage, loopTrim, loopRules, loopPool, loopQuotas, loopStored, loopNodes, loopDrain, loopMemory}
}

// loop is a step that is repeated. Each loop has a goroutine of its own, so a slow one does not delay the others.
type loop struct {
	name   string
	every  time.Duration // from start to start, at most
	always bool          // also while this scheduler does not lead
	step   func(context.Context) error
}

func (s *Scheduler) loops() []loop {
	loops := []loop{
		{name: loopLead, every: leaseTTL / 4, always: true, step: s.lead},
		{name: loopExpire, every: s.cfg.ExpireEvery, step: s.expire},
		{name: loopSweep, every: s.cfg.SweepEvery, step: s.sweep},
		{name: loopRetain, every: s.cfg.RetainEvery, step: s.retain},
		{name: loopUnstage, every: unstageEvery, step: s.unstage},
		{name: loopTrim, every: s.cfg.TrimEvery, step: s.trim},
		{name: loopRules, every: rulesEvery, step: s.rules},
		{name: loopStored, every: storedEvery, step: s.compareStored},
		{name: loopMemory, every: memoryEvery, step: s.forget},
	}
	if s.deps.Pool != nil {
		loops = append(loops, loop{name: loopPool, every: s.cfg.PoolEvery, step: s.checkPool})
	}
	if s.deps.Nodes != nil {
		loops = append(loops, loop{name: loopNodes, every: s.nodesEvery(), step: s.checkNodes})
	}
	if s.deps.Drains != nil {
		loops = append(loops, loop{name: loopDrain, every: s.cfg.SweepEvery, step: s.drain})
	}
	if s.deps.Quotas != nil {
		loops = append(loops, loop{name: loopQuotas, every: s.cfg.TrimEvery, step: s.checkQuotas})
	}
	return loops
}

// run repeats the step of a loop until ctx ends: at once, when this scheduler becomes the leader, and after each interval less its jitter.
func (s *Scheduler) run(ctx context.Context, l loop) {
	for {
		next, gained := time.NewTimer(s.pause(l)), s.gains()
		if l.always {
			gained = nil
		}
		if l.always || s.leading() {
			s.once(ctx, l)
		}
		select {
		case <-ctx.Done():
			next.Stop()
			return
		case <-gained:
			next.Stop()
		case <-next.C:
		}
	}
}

// pause is the loop's interval less its jitter, so that schedulers and loops that were started together drift apart.
func (s *Scheduler) pause(l loop) time.Duration {
	return l.every - time.Duration(float64(l.every)*s.cfg.Jitter*s.deps.Random())
}

func (s *Scheduler) once(ctx context.Context, l loop) {
	inner, done := context.WithTimeout(ctx, stepTimeout)
	defer done()
	began := time.Now()
	err := l.step(inner)
	if ctx.Err() != nil { // it was stopped: not an error of the step
		return
	}
	s.seen.ran(l.name, began, time.Now(), err)
	if err != nil {
		s.log.WarnContext(ctx, "periodic step failed; it will be retried", "loop", l.name, "error", err)
	}
}

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
		ended:    counter("sandfarm_scheduler_nodes_ended_total", "Nodes that were ended because they had no worker for scheduler.node_timeout."),
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

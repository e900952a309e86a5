package api

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/scale"
	"github.com/sandfarm/sandfarm/internal/telemetry"
)

// scrapeTimeout bounds the Redis reads of a scrape: scrapers themselves give up after some seconds.
const scrapeTimeout = 2 * time.Second

// metrics are the server's metrics. Their labels are bounded: routes, methods and statuses of the table.
type metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	inFlight prometheus.Gauge
	accepted *prometheus.CounterVec
	pooled   *prometheus.CounterVec
	refused  *prometheus.CounterVec
	handler  http.Handler
}

func newMetrics(registry *prometheus.Registry, queues service.Queues, fleet service.Fleet) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sandfarm_http_requests_total", Help: "Requests, by route, method and status; sandbox where one of its programs has answered.",
		}, []string{"route", "method", "status"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "sandfarm_http_request_duration_seconds", Help: "Seconds until a request was answered, waits included.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"route", "method"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{Name: "sandfarm_http_requests_in_flight", Help: "Requests in flight."}),
		accepted: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sandfarm_jobs_accepted_total", Help: "Accepted jobs, by kind.",
		}, []string{"kind"}),
		pooled: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sandfarm_pool_claims_total", Help: "Creates that asked the warm pool for a sandbox, by outcome: hit or miss.",
		}, []string{"outcome"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sandfarm_quota_refusals_total", Help: "Requests that a quota of their tenant refused, by quota.",
		}, []string{"quota"}),
		handler: telemetry.Handler(registry),
	}
	for _, name := range farm.QuotaNames() {
		if name != farm.QuotaRunning && name != farm.QuotaStoredMB { // these refuse no request
			m.refused.WithLabelValues(string(name))
		}
	}
	for _, outcome := range []string{poolHit, poolMiss} { // so that rate() sees the first increase
		m.pooled.WithLabelValues(outcome)
	}
	for _, c := range []prometheus.Collector{
		m.requests, m.duration, m.inFlight, m.accepted, m.pooled, m.refused, newFarmCollector(queues, fleet),
	} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}

// Outcomes of a claim on the warm pool.
const (
	poolHit  = "hit"
	poolMiss = "miss"
)

// countRefusal counts a request that a quota refused.
func (m *metrics) countRefusal(quota farm.QuotaName) { m.refused.WithLabelValues(string(quota)).Inc() }

// countClaim counts a create that asked the warm pool for a sandbox.
func (m *metrics) countClaim(hit bool) {
	if hit {
		m.pooled.WithLabelValues(poolHit).Inc()
	} else {
		m.pooled.WithLabelValues(poolMiss).Inc()
	}
}

// observe counts every request.
func (m *metrics) observe(c *gin.Context) {
	start := time.Now()
	m.inFlight.Inc()
	defer func() {
		m.inFlight.Dec()
		route, method := rest.PathTemplate(c), rest.Method(c)
		status := "sandbox" // its programs must not create labels
		if own := rest.Status(c); own > 0 {
			status = strconv.Itoa(own)
		}
		m.requests.WithLabelValues(route, method, status).Inc()
		m.duration.WithLabelValues(route, method).Observe(time.Since(start).Seconds())
	}()
	c.Next()
}

// farmCollector reads the farm's state when it is scraped.
type farmCollector struct {
	queues                                      service.Queues
	fleet                                       service.Fleet
	depth, running, oldest, workers, slots, box *prometheus.Desc
	gpus, leased, free, drained                 *prometheus.Desc
}

func newFarmCollector(queues service.Queues, fleet service.Fleet) *farmCollector {
	return &farmCollector{
		queues: queues, fleet: fleet,
		depth:   prometheus.NewDesc("sandfarm_queue_depth", "Waiting jobs, by queue.", []string{"queue"}, nil),
		running: prometheus.NewDesc("sandfarm_queue_running", "Running jobs, by queue.", []string{"queue"}, nil),
		oldest:  prometheus.NewDesc("sandfarm_queue_oldest_seconds", "Age of the oldest waiting job, by queue; 0 if none waits.", []string{"queue"}, nil),
		workers: prometheus.NewDesc("sandfarm_workers", "Live workers.", nil, nil),
		slots:   prometheus.NewDesc("sandfarm_worker_slots", "Jobs of one tenant that all live workers can run at once.", nil, nil),
		box:     prometheus.NewDesc("sandfarm_worker_sandboxes", "Open sandboxes of all live workers.", nil, nil),
		gpus:    prometheus.NewDesc("sandfarm_gpus", "GPUs that live workers offer to sandboxes, by model.", []string{"model"}, nil),
		leased:  prometheus.NewDesc("sandfarm_gpus_leased", "GPUs that sandboxes have, by model.", []string{"model"}, nil),
		free:    prometheus.NewDesc("sandfarm_queue_gpus_free", "GPUs that no sandbox has, by the queue whose jobs could have them.", []string{"queue"}, nil),
		drained: prometheus.NewDesc("sandfarm_workers_draining", "Live workers whose node is drained.", nil, nil),
	}
}

// Describe is part of prometheus.Collector.
func (f *farmCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{f.depth, f.running, f.oldest, f.workers, f.slots, f.box, f.gpus, f.leased, f.free, f.drained} {
		ch <- d
	}
}

// Collect is part of prometheus.Collector. It omits metrics whose source cannot be read.
func (f *farmCollector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout) //nolint:forbidigo // the interface has no context
	defer cancel()
	gauge := func(d *prometheus.Desc, v int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	if depths, err := f.queues.Depths(ctx); err == nil {
		for _, d := range depths {
			gauge(f.depth, d.Depth, d.Name)
			gauge(f.running, d.Running, d.Name)
			ch <- prometheus.MustNewConstMetric(f.oldest, prometheus.GaugeValue, d.OldestSeconds, d.Name)
		}
	}
	if workers, err := f.fleet.Workers(ctx); err == nil {
		slots, boxes, drained := 0, 0, 0
		for _, w := range workers {
			slots += w.Slots
			boxes += w.Sandboxes
			if w.Draining {
				drained++
			}
		}
		gauge(f.workers, len(workers))
		gauge(f.slots, slots)
		gauge(f.box, boxes)
		gauge(f.drained, drained)
		all, leased := service.GPUModels(workers)
		for model, n := range all {
			gauge(f.gpus, n, model)
			gauge(f.leased, leased[model], model)
		}
		for queue, n := range service.FreeGPUs(workers) {
			gauge(f.free, n, queue)
		}
	}
}

func (s *Server) showMetrics(c *gin.Context) error {
	s.metrics.handler.ServeHTTP(c.Writer, c.Request)
	return nil
}

// scaleCollector reads what GET /v1/scale says when it is scraped. Its labels are bounded by the GPU models of the farm.
type scaleCollector struct {
	needs                                  func(context.Context) ([]scale.Need, error)
	nodes, wanted, idle, draining, failing *prometheus.Desc
	waiting, unfit                         *prometheus.Desc
}

func newScaleCollector(needs func(context.Context) ([]scale.Need, error)) *scaleCollector {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("sandfarm_scale_"+name, help, []string{"kind", "model"}, nil)
	}
	return &scaleCollector{
		needs:    needs,
		nodes:    desc("nodes", "Nodes that take new sandboxes, by kind and GPU model."),
		wanted:   desc("nodes_wanted", "Nodes that would take everything that waits, without those that are idle."),
		idle:     desc("nodes_idle", "Nodes that could be removed."),
		draining: desc("nodes_draining", "Nodes that are drained."),
		failing:  desc("nodes_failing", "Nodes whose workers accept no jobs."),
		waiting:  desc("creates_waiting", "Creates that have waited for at least 5 seconds."),
		unfit:    desc("creates_unfit", "Of those, the ones that no node of the kind could take even if it were empty."),
	}
}

// Describe is part of prometheus.Collector.
func (s *scaleCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{s.nodes, s.wanted, s.idle, s.draining, s.failing, s.waiting, s.unfit} {
		ch <- d
	}
}

// Collect is part of prometheus.Collector. It has no metrics while Redis does not answer.
func (s *scaleCollector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout) //nolint:forbidigo // the interface has no context
	defer cancel()
	needs, err := s.needs(ctx)
	if err != nil {
		return
	}
	for _, n := range needs {
		for d, v := range map[*prometheus.Desc]int{
			s.nodes: n.Nodes, s.wanted: n.Wanted, s.idle: len(n.Idle), s.draining: n.Draining, s.failing: n.Failing, s.waiting: n.Waiting, s.unfit: n.Unfit,
		} {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), service.KindName(n.Kind), n.Kind.Model)
		}
	}
}

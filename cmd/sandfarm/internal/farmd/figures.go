package farmd

import (
	"cmp"
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandfarm/sandfarm/internal/httpserver"
	"github.com/sandfarm/sandfarm/internal/index"
	"github.com/sandfarm/sandfarm/internal/telemetry"
)

// MetricsSettings say where the metrics of a process are shown without a key.
type MetricsSettings struct {
	Listen string `toml:"listen" doc:"Address at which this process shows its metrics without a key, such as 127.0.0.1:9101. Empty: sandfarm up and sandfarm api use 127.0.0.1:8002, if it is free; a worker or a scheduler that runs alone has none. none: nowhere. The API shows them at its own address as well, to callers with a key."`
}

const (
	// metricsDefault is where processes with an API show their metrics if nothing is configured; deploy/prometheus scrapes it.
	metricsDefault = "127.0.0.1:8002"
	metricsNone    = "none"
)

// figures are what this process counts beside its services.
type figures struct {
	registry *prometheus.Registry
	service  string
	version  string
	redis    *telemetry.Redis

	calls    *prometheus.HistogramVec
	failures *prometheus.CounterVec
	builds   *prometheus.CounterVec
}

// Outcomes of an image that a worker needs, as the metric has them.
const (
	imageBuilt  = "built"
	imageKept   = "kept"
	imageFailed = "failed"
)

func newFigures(service, version string) (*figures, error) {
	registry, err := telemetry.NewRegistry(service, version)
	if err != nil {
		return nil, err
	}
	f := &figures{
		registry: registry, service: service, version: version,
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "sandfarm_engine_call_seconds", Help: "Seconds that calls of the container engine took, by call.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"call"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sandfarm_engine_errors_total", Help: "Calls of the container engine that went wrong, those about things it does not have included, by call.",
		}, []string{"call"}),
		builds: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sandfarm_image_builds_total", Help: "Sandbox images that a worker needed, by outcome: built, kept (it was there) or failed.",
		}, []string{"outcome"}),
	}
	if f.redis, err = telemetry.NewRedis(registry); err != nil {
		return nil, err
	}
	return f, nil
}

// worker registers what only a process with a worker counts.
func (f *figures) worker(packages *index.Index) error {
	for _, outcome := range []string{imageBuilt, imageKept, imageFailed} {
		f.builds.WithLabelValues(outcome)
	}
	f.failures.WithLabelValues("ping engine")
	return telemetry.Register(f.registry, append(indexFigures(packages), f.calls, f.failures, f.builds)...)
}

// engine counts a call of the engine.
func (f *figures) engine(call string, took time.Duration, err error) {
	f.calls.WithLabelValues(call).Observe(took.Seconds())
	if err != nil {
		f.failures.WithLabelValues(call).Inc()
	}
}

// image counts an image that a worker needed. Whether it was there is looked at before.
func (f *figures) image(there bool, err error) {
	switch {
	case err != nil:
		f.builds.WithLabelValues(imageFailed).Inc()
	case there:
		f.builds.WithLabelValues(imageKept).Inc()
	default:
		f.builds.WithLabelValues(imageBuilt).Inc()
	}
}

// indexFigures show what the package indexes count.
func indexFigures(x *index.Index) []prometheus.Collector {
	show := func(name, help string, get func(index.Stats) int64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(get(x.Stats())) })
	}
	return []prometheus.Collector{
		show("sandfarm_index_requests_total", "Requests of installers, refused ones included.", func(s index.Stats) int64 { return s.Requests }),
		show("sandfarm_index_hits_total", "Pages and files that needed nothing of upstream.", func(s index.Stats) int64 { return s.Hits }),
		show("sandfarm_index_coalesced_total", "Requests that joined one for the same thing.", func(s index.Stats) int64 { return s.Coalesced }),
		show("sandfarm_index_upstream_requests_total", "Requests sent upstream.", func(s index.Stats) int64 { return s.UpstreamRequests }),
		show("sandfarm_index_downloads_total", "Files whose download from upstream was begun.", func(s index.Stats) int64 { return s.UpstreamFiles }),
		show("sandfarm_index_upstream_bytes_total", "Bytes that came from upstream.", func(s index.Stats) int64 { return s.UpstreamBytes }),
		show("sandfarm_index_cache_errors_total", "Calls of the cache in the object store that went wrong.", func(s index.Stats) int64 { return s.CacheErrors }),
		show("sandfarm_index_trimmed_total", "Values that were removed from the cache to make room.", func(s index.Stats) int64 { return s.Trimmed }),
	}
}

// showMetrics serves the metrics without a key, at a default address if none is configured. If the default is taken, as by
// another farm, that is only logged. The caller stops the server.
func (p *Parts) showMetrics(ctx context.Context, byDefault string) (*httpserver.Server, error) {
	listen := p.Settings.Metrics.Listen
	if listen == metricsNone {
		listen, byDefault = "", ""
	}
	server := telemetry.NewServer(cmp.Or(listen, byDefault), p.figures.registry, p.Log)
	err := server.Start(ctx)
	if err != nil && listen == "" {
		p.Log.WarnContext(ctx, "metrics are shown at the API's address only; set metrics.listen to another address, or to none", "error", err)
		err = nil
	}
	return server, err
}

package farmd

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandfarm/sandfarm/api/guard"
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

// metrics are the metrics of this process, beside those of its services.
type metrics struct {
	registry *prometheus.Registry
	service  string
	version  string
	redis    *telemetry.Redis

	calls    *prometheus.HistogramVec
	failures *prometheus.CounterVec
	builds   *prometheus.CounterVec
}

// Outcomes of an image that a worker needs, as labels of the metric.
const (
	imageBuilt  = "built"
	imageKept   = "kept"
	imageFailed = "failed"
)

func newMetrics(service, version string) (*metrics, error) {
	registry, err := telemetry.NewRegistry(service, version)
	if err != nil {
		return nil, err
	}
	f := &metrics{
		registry: registry, service: service, version: version,
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "sandfarm_engine_call_seconds", Help: "Seconds that calls of the container engine took, by call.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"call"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sandfarm_engine_errors_total", Help: "Calls of the container engine that failed, including those for things that do not exist, by call.",
		}, []string{"call"}),
		builds: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sandfarm_image_builds_total", Help: "Sandbox images that a worker needed, by outcome: built, kept (it existed) or failed.",
		}, []string{"outcome"}),
	}
	if f.redis, err = telemetry.NewRedis(registry); err != nil {
		return nil, err
	}
	return f, nil
}

// worker registers the metrics of a process with a worker.
func (f *metrics) worker(packages *index.Index) error {
	for _, outcome := range []string{imageBuilt, imageKept, imageFailed} {
		f.builds.WithLabelValues(outcome)
	}
	f.failures.WithLabelValues("ping engine")
	return telemetry.Register(f.registry, append(indexMetrics(packages), f.calls, f.failures, f.builds)...)
}

// engine counts a call of the engine.
func (f *metrics) engine(call string, took time.Duration, err error) {
	f.calls.WithLabelValues(call).Observe(took.Seconds())
	if err != nil {
		f.failures.WithLabelValues(call).Inc()
	}
}

// image counts an image that a worker needed; there: it existed before.
func (f *metrics) image(there bool, err error) {
	switch {
	case err != nil:
		f.builds.WithLabelValues(imageFailed).Inc()
	case there:
		f.builds.WithLabelValues(imageKept).Inc()
	default:
		f.builds.WithLabelValues(imageBuilt).Inc()
	}
}

// indexMetrics export the counters of the package indexes.
func indexMetrics(x *index.Index) []prometheus.Collector {
	show := func(name, help string, get func(index.Stats) int64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(get(x.Stats())) })
	}
	return []prometheus.Collector{
		show("sandfarm_index_requests_total", "Requests of installers, including refused ones.", func(s index.Stats) int64 { return s.Requests }),
		show("sandfarm_index_hits_total", "Pages and files that were served without upstream.", func(s index.Stats) int64 { return s.Hits }),
		show("sandfarm_index_coalesced_total", "Requests that joined a running one for the same thing.", func(s index.Stats) int64 { return s.Coalesced }),
		show("sandfarm_index_upstream_requests_total", "Requests sent upstream.", func(s index.Stats) int64 { return s.UpstreamRequests }),
		show("sandfarm_index_downloads_total", "Files whose download from upstream started.", func(s index.Stats) int64 { return s.UpstreamFiles }),
		show("sandfarm_index_upstream_bytes_total", "Bytes downloaded from upstream.", func(s index.Stats) int64 { return s.UpstreamBytes }),
		show("sandfarm_index_cache_errors_total", "Failed calls of the cache in S3.", func(s index.Stats) int64 { return s.CacheErrors }),
		show("sandfarm_index_trimmed_total", "Values evicted from the cache.", func(s index.Stats) int64 { return s.Trimmed }),
	}
}

// showMetrics serves the metrics without a key, at a default address if none is configured. If the default is taken, as by
// another farm, that is only logged. The caller stops the server.
func (p *Parts) showMetrics(ctx context.Context, byDefault string) (*httpserver.Server, error) {
	listen := p.Settings.Metrics.Listen
	if listen == metricsNone {
		listen, byDefault = "", ""
	}
	shown := noRebinding(guard.Guard{Hosts: p.Settings.API.TrustedHosts}, telemetry.Handler(p.metrics.registry))
	server := telemetry.NewServer(cmp.Or(listen, byDefault), shown, p.Log)
	err := server.Start(ctx)
	if err != nil && listen == "" {
		p.Log.WarnContext(ctx, "metrics are shown at the API's address only; set metrics.listen to another address, or to none", "error", err)
		err = nil
	}
	return server, err
}

// noRebinding refuses requests that reach a loopback address under a name that is not trusted: those of a web page that points its own
// name at this machine (DNS rebinding), and could read the answer.
func noRebinding(g guard.Guard, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if guard.OverLoopback(r) && !g.Host(r.Host) {
			http.Error(w, "The metrics are not shown under the name in the Host header. Use http://127.0.0.1, or add the name to api.trusted_hosts (SANDFARM_API_TRUSTED_HOSTS).", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Package telemetry exposes a process to its operator: the registry of metrics, the server that shows them without a key, the
// metrics of Redis clients, and the export of traces.
//
// Services define their own metrics and register them here. Names begin with sandfarm_, and labels are bounded: no caller,
// sandbox or job can create a series.
package telemetry

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sandfarm/sandfarm/internal/httpserver"
)

// NewRegistry makes the registry of a process, with metrics of the Go runtime, the process and the build.
func NewRegistry(service, version string) (*prometheus.Registry, error) {
	registry := prometheus.NewRegistry()
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "sandfarm_build_info", Help: "Always 1: what runs here, and of which version.",
		ConstLabels: prometheus.Labels{"service": service, "version": version},
	})
	build.Set(1)
	if err := Register(registry, build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})); err != nil {
		return nil, err
	}
	return registry, nil
}

// Register registers collectors and joins their errors.
func Register(to prometheus.Registerer, collectors ...prometheus.Collector) error {
	var errs []error
	for _, c := range collectors {
		errs = append(errs, to.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	return nil
}

// Seconds are histogram buckets for durations from a millisecond to half an hour.
func Seconds() []float64 {
	return []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800}
}

const (
	headerTimeout = 10 * time.Second // a scraper sends one line
	writeTimeout  = 30 * time.Second // longer than any scraper waits
	stopTimeout   = 2 * time.Second  // a scrape in progress is not worth more
	connections   = 64               // far more than there are scrapers
)

// Handler shows a registry. Collectors that fail are left out, and the others shown.
func Handler(registry *prometheus.Registry) http.Handler {
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
}

// NewServer makes a server that shows metrics at /metrics, without a key, and answers /healthz, which asks nothing else whether the process is alive;
// nothing is started. metrics is Handler, behind the caller's checks of the request. With no address it never listens.
func NewServer(listen string, metrics http.Handler, log *slog.Logger) *httpserver.Server {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics)
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	return httpserver.New(httpserver.Config{
		Name: "metrics (metrics.listen)", Listen: listen, MaxConnections: connections, StopTimeout: stopTimeout, Log: log,
		HTTP: &http.Server{Handler: mux, ReadHeaderTimeout: headerTimeout, ReadTimeout: headerTimeout, WriteTimeout: writeTimeout},
	})
}

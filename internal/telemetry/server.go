package telemetry

import (
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sandfarm/sandfarm/internal/httpserver"
)

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

// NewServer makes a server that shows metrics at /metrics, without a key; nothing is started. metrics is Handler, behind the caller's
// checks of the request. With no address it never listens.
func NewServer(listen string, metrics http.Handler, log *slog.Logger) *httpserver.Server {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics)
	return httpserver.New(httpserver.Config{
		Name: "metrics (metrics.listen)", Listen: listen, MaxConnections: connections, StopTimeout: stopTimeout, Log: log,
		HTTP: &http.Server{Handler: mux, ReadHeaderTimeout: headerTimeout, ReadTimeout: headerTimeout, WriteTimeout: writeTimeout},
	})
}

package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	headerTimeout = 10 * time.Second // a scraper sends one line; nobody else has business here
	writeTimeout  = 30 * time.Second // beyond what any scraper waits
	stopTimeout   = 2 * time.Second  // a scrape that is under way is not worth more
)

// Handler shows a registry. What cannot be collected is left out, and the rest shown.
func Handler(registry *prometheus.Registry) http.Handler {
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
}

// Server shows a registry at /metrics, for processes that have no API.
type Server struct {
	listen  string
	handler http.Handler
	log     *slog.Logger

	mu       sync.Mutex
	listener net.Listener
	http     *http.Server
	serving  sync.WaitGroup
}

// NewServer makes a server for an address; nothing is started. Without an address it never listens.
func NewServer(listen string, registry *prometheus.Registry, log *slog.Logger) *Server {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", Handler(registry))
	return &Server{listen: listen, handler: mux, log: log}
}

// Start begins to listen, once.
func (s *Server) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listen == "" {
		return nil
	}
	if s.http != nil {
		return errors.New("start metrics: it was started before")
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", s.listen)
	if err != nil {
		return fmt.Errorf("listen for scrapes (metrics.listen): %w", err)
	}
	server := &http.Server{
		Handler: s.handler, ReadHeaderTimeout: headerTimeout, ReadTimeout: headerTimeout, WriteTimeout: writeTimeout,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	s.listener, s.http = listener, server
	s.log.InfoContext(ctx, "metrics are shown", "addr", listener.Addr().String())
	s.serving.Go(func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			s.log.ErrorContext(ctx, "metrics are not shown any more", "error", err)
		}
	})
	return nil
}

// Addr is the address that the server listens on; empty when it does not.
func (s *Server) Addr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener == nil {
		return ""
	}
	return s.listener.Addr().String()
}

// Stop ends the server and waits. It may be called again, and before Start.
func (s *Server) Stop() {
	s.mu.Lock()
	server := s.http
	s.mu.Unlock()
	if server == nil {
		return
	}
	ctx, done := context.WithTimeout(context.Background(), stopTimeout) //nolint:forbidigo // Stop has no context
	defer done()
	if err := server.Shutdown(ctx); err != nil {
		_ = server.Close()
	}
	s.serving.Wait()
}

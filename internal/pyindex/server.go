package pyindex

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

// headerTimeout is how long a caller may take for its headers: all callers are on this host.
const headerTimeout = 10 * time.Second

// Server is a Handler that listens on a free port of loopback.
type Server struct {
	http *http.Server
	to   *http.Client // upstream
	url  string
	done chan error
}

// Serve starts a Server; Close ends it.
func Serve(ctx context.Context, cfg Config) (*Server, error) {
	h, err := New(cfg)
	if err != nil {
		return nil, err
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for package index: %w", err)
	}
	s := &Server{
		http: &http.Server{Handler: h, ReadHeaderTimeout: headerTimeout},
		to:   h.client,
		url:  "http://" + l.Addr().String() + "/simple/",
		done: make(chan error, 1),
	}
	go func() { s.done <- s.http.Serve(l) }()
	return s, nil
}

// URL is the address of the index, as installers want it.
func (s *Server) URL() string { return s.url }

// Close ends the server at once and waits for it.
func (s *Server) Close() error {
	err := s.http.Close()
	s.to.CloseIdleConnections()
	if served := <-s.done; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	if err != nil {
		return fmt.Errorf("close package index: %w", err)
	}
	return nil
}

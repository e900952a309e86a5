package index

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

// headerMax is how much a caller's headers may hold; installers send under 2 KiB.
const headerMax = 32 << 10

// Server is an Index that listens on a free port of loopback.
type Server struct {
	index *Index
	http  *http.Server
	root  string
	done  chan error
}

// Serve starts a Server; Close ends it.
func Serve(ctx context.Context, cfg Config) (*Server, error) {
	x, err := New(cfg)
	if err != nil {
		return nil, err
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for package index: %w", errors.Join(err, x.Close()))
	}
	s := &Server{
		index: x,
		http:  &http.Server{Handler: x, ReadHeaderTimeout: headerTimeout, MaxHeaderBytes: headerMax},
		root:  "http://" + l.Addr().String(),
		done:  make(chan error, 1),
	}
	go func() { s.done <- s.http.Serve(l) }()
	return s, nil
}

// URL is the address of the Python index, as installers want it.
func (s *Server) URL() string { return s.root + "/pypi/simple/" }

// NpmURL is the address of the npm registry, as npm wants it.
func (s *Server) NpmURL() string { return s.root + "/npm/" }

// Stats returns the counters of its index.
func (s *Server) Stats() Stats { return s.index.Stats() }

// Close stops the server at once and waits until it and its index have ended.
func (s *Server) Close() error {
	err := s.http.Close()
	if served := <-s.done; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	if err = errors.Join(err, s.index.Close()); err != nil {
		return fmt.Errorf("close package index: %w", err)
	}
	return nil
}

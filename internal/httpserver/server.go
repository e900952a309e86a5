// Package httpserver starts and stops an HTTP server, the same way for every service that listens.
package httpserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"sync"
	"time"
)

// Config says what is served and where.
type Config struct {
	// Name says in errors and logs what listens, such as "api".
	Name string
	// Listen is host:port; port 0 picks a free one. "" means that Start does nothing.
	Listen string
	// HTTP has the handler and the timeouts; its ConnState and ConnContext are replaced, and its MaxHeaderBytes is 32 KiB if it is not set. Required. With a TLSConfig it serves TLS, whose
	// certificate that has; without, the lines of headers are bounded, see Header.
	HTTP *http.Server
	// MaxConnections is how many connections are open at a time. Beyond it, a new one replaces one that has for more than a second sent no header or no 64 KiB
	// of its body, or taken no 64 KiB of its answer, or one that is idle between requests, and waits while there is none; see Known.
	// 0 means half of the files that the process may open, at most 16384, and at most what a quarter of GOMEMLIMIT holds at 160 KiB each.
	MaxConnections int
	// StallTimeout is how long a client may take for 64 KiB of an answer, unless the handler sets a deadline or the server has a TLSConfig. A body
	// that no handler reads has half as long, and at most five seconds. 0 means 30 seconds.
	StallTimeout time.Duration
	// Accepted replaces a connection that was accepted, below TLS; nil: it stays as it is.
	Accepted func(net.Conn) net.Conn
	// StopTimeout is how long Stop waits for requests that run before it cuts them off. 0 means not at all.
	StopTimeout time.Duration
	// Log gets start, end and failures. Required.
	Log *slog.Logger
}

// Server is one listening address. Its methods may be called concurrently.
type Server struct {
	cfg      Config
	mu       sync.Mutex
	listener net.Listener
	stopped  bool
	serving  sync.WaitGroup
}

// New makes a server; nothing is started.
func New(cfg Config) *Server { return &Server{cfg: cfg} }

// Start listens and serves. It returns when requests are accepted. It works once. ctx bounds the start; requests get its values.
func (s *Server) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped || s.listener != nil {
		return fmt.Errorf("start %s: it was started or stopped before", s.cfg.Name)
	}
	if s.cfg.Listen == "" {
		return nil
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", s.cfg.Listen)
	if err != nil {
		return fmt.Errorf("start %s: %w", s.cfg.Name, err)
	}
	s.listener = listener
	s.cfg.HTTP.ErrorLog = slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelDebug)
	s.cfg.HTTP.BaseContext = func(net.Listener) context.Context { return context.WithoutCancel(ctx) }
	stall := cmp.Or(s.cfg.StallTimeout, 30*time.Second)
	s.cfg.HTTP.Handler = endPipelines(awaitBodies(boundQueries(s.cfg.HTTP.Handler), min(stall/2, unreadTimeout)))
	first := firstBytes
	if s.cfg.HTTP.TLSConfig != nil { // whose callers show a certificate, and are not made known
		first = receiveBytes
	}
	limit := newLimited(listener, cmp.Or(s.cfg.MaxConnections, defaultConnections(debug.SetMemoryLimit(-1), Files())), stall, first)
	s.cfg.HTTP.ConnState = limit.note
	s.cfg.HTTP.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		if c, ok := conn.(*counted); ok {
			ctx = context.WithValue(ctx, connKey{}, c)
		}
		return ctx
	}
	s.cfg.HTTP.DisableGeneralOptionsHandler = true // it would answer OPTIONS * past all bounds of a handler
	s.cfg.HTTP.MaxHeaderBytes = cmp.Or(s.cfg.HTTP.MaxHeaderBytes, headerBytes)
	listener = limit
	if s.cfg.Accepted != nil {
		listener = accepting{listener, s.cfg.Accepted}
	}
	s.cfg.Log.InfoContext(ctx, s.cfg.Name+" listens", slog.String("addr", listener.Addr().String()))
	s.serving.Go(func() {
		serve := s.cfg.HTTP.Serve
		if s.cfg.HTTP.TLSConfig != nil {
			serve = func(l net.Listener) error { return s.cfg.HTTP.ServeTLS(l, "", "") }
		}
		if err := serve(listener); !errors.Is(err, http.ErrServerClosed) {
			s.cfg.Log.ErrorContext(ctx, s.cfg.Name+" stopped serving", slog.Any("error", err))
		}
	})
	return nil
}

// Addr is the address that the server listens on; "" before Start, and where it does not listen.
func (s *Server) Addr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener == nil {
		return ""
	}
	return s.listener.Addr().String()
}

// Stop waits for requests that run, cuts off those that take too long, and returns when the server has ended. It may be called
// again, and before Start, which fails then.
func (s *Server) Stop() {
	s.mu.Lock()
	s.stopped = true
	started := s.listener != nil
	s.mu.Unlock()
	if !started {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.StopTimeout) //nolint:forbidigo // Stop has no context
	defer cancel()
	if err := s.cfg.HTTP.Shutdown(ctx); err != nil {
		s.cfg.Log.WarnContext(ctx, s.cfg.Name+": requests were cut off", slog.Any("error", err))
		_ = s.cfg.HTTP.Close()
	}
	s.serving.Wait()
}

// accepting replaces the connections of a listener.
type accepting struct {
	net.Listener
	accepted func(net.Conn) net.Conn
}

// Accept implements net.Listener.
func (a accepting) Accept() (net.Conn, error) {
	conn, err := a.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return a.accepted(conn), nil
}

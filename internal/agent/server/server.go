package server

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/hashicorp/yamux"
)

const (
	// streamWindow is what the agent lets a worker send ahead on one stream: enough at the round trip of a local engine, and small,
	// because it is the sandbox's memory.
	streamWindow = 1 << 20
	// writeTimeout is how long a stream may take nothing before its session counts as broken.
	writeTimeout = 30 * time.Second
	// headerTimeout bounds the head of a request.
	headerTimeout = 30 * time.Second
)

// Server is the agent. Make it with New.
type Server struct {
	cfg     Config
	root    *os.Root
	handler http.Handler
}

// New opens the workspace and makes the agent's own directory. Nothing runs yet.
func New(cfg Config) (*Server, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.RunDir, 0o700); err != nil {
		return nil, fmt.Errorf("make run directory: %w", err)
	}
	root, err := os.OpenRoot(cfg.Workspace)
	if err != nil {
		return nil, fmt.Errorf("open workspace: %w", err)
	}
	s := &Server{cfg: cfg, root: root}
	s.handler = s.routes()
	return s, nil
}

// ServeConn serves one stream until it ends or ctx is done. Several may be served at once.
func (s *Server) ServeConn(ctx context.Context, conn io.ReadWriteCloser) error {
	config := yamux.DefaultConfig()
	config.MaxStreamWindowSize = streamWindow
	config.ConnectionWriteTimeout = writeTimeout
	config.LogOutput = io.Discard
	session, err := yamux.Server(conn, config)
	if err != nil {
		return fmt.Errorf("open session: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = session.Close() })
	defer stop()
	srv := &http.Server{Handler: s.handler, ReadHeaderTimeout: headerTimeout}
	err = srv.Serve(session)
	_ = srv.Close()
	if err != nil && !session.IsClosed() {
		return fmt.Errorf("serve session: %w", err)
	}
	return nil
}

// Close ends everything that runs and waits for it.
func (s *Server) Close() error { return s.root.Close() }

func (s *Server) routes() http.Handler { return http.NewServeMux() }

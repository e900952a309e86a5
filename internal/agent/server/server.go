package server

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
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

// Server is the agent. Make it with New and end it with Close.
type Server struct {
	cfg     Config
	image   []string // the environment without what installs add to it: where the agent finds the image's programs
	env     []string // that of all user code
	root    *os.Root
	handler http.Handler
	reaper  *reaper
	buffers *sync.Pool
	seed    maphash.Seed

	sessions    sessions
	index       *egress // nil: none
	installs    line    // one at a time
	executions  *registry
	kernels     kernels
	kernelsUp   sync.WaitGroup
	langs       languages
	interpreter python
	uvOnce      sync.Once
	uvRuns      bool         // read after uvOnce
	installed   atomic.Int64 // how often something was installed: kernels look anew then
	listed      requirementsSeen

	deadline deadline

	life   context.Context //nolint:containedctx // the life of what outlasts a request
	endAll context.CancelFunc
	once   sync.Once
}

// New opens the workspace and makes the agent's own directory. Nothing of the user's runs yet.
func New(cfg Config) (*Server, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if err := registerBounded(); err != nil {
		return nil, err
	}
	cfg.Workspace = filepath.Clean(cfg.Workspace)
	if err := os.MkdirAll(cfg.RunDir, 0o700); err != nil {
		return nil, fmt.Errorf("make run directory: %w", err)
	}
	root, err := os.OpenRoot(cfg.Workspace)
	if err != nil {
		return nil, fmt.Errorf("open workspace: %w", err)
	}
	s := &Server{
		listed: requirementsSeen{},
		cfg:    cfg, image: environment(cfg), root: root, reaper: newReaper(cfg.ReapAll), buffers: newBufferPool(),
		seed: maphash.MakeSeed(), executions: newRegistry(), kernels: kernels{slots: map[place]*slot{}},
	}
	s.life, s.endAll = context.WithCancel(context.Background()) //nolint:forbidigo // the server's life is Close's to end
	_ = root.RemoveAll(stagingDir)
	s.handler = s.routes()
	if err := s.makePackageDir(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.makeApp()
	s.makeAccount()
	if cfg.Index != "" {
		if s.index, err = s.openEgress(cfg.Index, egressWait); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	s.env = s.withPackages(s.image)
	s.deadline.end = cfg.End
	if cfg.EndsIn > 0 {
		s.deadline.set(cfg.EndsIn)
	}
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
	defer s.sessions.add(session)()
	srv := &http.Server{Handler: s.handler, ReadHeaderTimeout: headerTimeout}
	err = srv.Serve(session)
	_ = srv.Close()
	if err != nil && !session.IsClosed() {
		return fmt.Errorf("serve session: %w", err)
	}
	return nil
}

// Close kills everything that was started and waits for it. It is idempotent.
func (s *Server) Close() error {
	var err error
	s.once.Do(func() {
		s.deadline.stop()
		s.executions.close()
		s.endAll()
		s.closeKernels()
		if s.index != nil {
			s.index.close()
		}
		s.reaper.close()
		err = s.root.Close()
	})
	return err
}

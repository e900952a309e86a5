package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/files"
	"github.com/sandfarm/sandfarm/internal/agent/install"
	"github.com/sandfarm/sandfarm/internal/agent/kernel"
	"github.com/sandfarm/sandfarm/internal/agent/process"
	"github.com/sandfarm/sandfarm/internal/agent/transport"
)

const (
	// streamWindow is how much a worker may send ahead on one stream: enough for the round trip of a local engine, but small,
	// because it uses the sandbox's memory.
	streamWindow = 1 << 20
	// writeTimeout is how long a write may make no progress before its session counts as broken.
	writeTimeout = 30 * time.Second
	// headerTimeout bounds reading the header of a request.
	headerTimeout = 30 * time.Second
)

// Server is the agent. Create it with New and stop it with Close.
type Server struct {
	cfg        Config
	handler    http.Handler
	reaper     *process.Reaper
	files      *files.Workspace
	egress     *transport.Egress // nil: no way out
	commands   *process.Commands
	kernels    *kernel.Kernels
	installer  *install.Installer
	installs   atomic.Int64 // installs that changed something
	executions *registry
	processes  *processes
	livefiles  *livefiles
	sessions   sessions
	use        meter
	ports      portStreams
	deadline   deadline

	life    context.Context // the life of everything that outlasts a request
	endLife context.CancelFunc
	once    sync.Once
}

// New opens the workspace and creates the agent's own directory. It runs no user code.
func New(cfg Config) (*Server, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cfg.Workspace = filepath.Clean(cfg.Workspace)
	if err := os.MkdirAll(cfg.RunDir, 0o700); err != nil {
		return nil, fmt.Errorf("make run directory: %w", err)
	}
	workspace, err := files.Open(cfg.Workspace)
	if err != nil {
		return nil, err
	}
	_, memory := process.Memory()
	s := &Server{cfg: cfg, reaper: process.NewReaper(cfg.ReapAll), files: workspace, executions: newRegistry(memory), processes: newProcesses(memory), use: meter{at: time.Now()}}
	if cfg.ReapAll {
		if err := s.reaper.Protect(); err != nil {
			s.reaper.Close()
			return nil, errors.Join(fmt.Errorf("protect the agent from user code: %w", err), workspace.Close())
		}
	}
	s.livefiles = &livefiles{program: cfg.Program, reaper: s.reaper}
	s.life, s.endLife = context.WithCancel(context.Background()) //nolint:forbidigo // the server's life is Close's to end
	s.handler = s.routes()
	image := environment(cfg)
	s.makeResultsLink()
	s.makeAccount(image)
	if err := s.assemble(image); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.deadline.end = cfg.End
	if cfg.EndsIn > 0 {
		s.deadline.set(cfg.EndsIn)
	}
	return s, nil
}

// assemble creates the parts that run commands, code and installs.
func (s *Server) assemble(image []string) error {
	cfg := s.cfg
	packages := install.Config{
		HomeDir: cfg.HomeDir, UV: cfg.UV, Image: image, Reaper: s.reaper, Files: s.files, Guard: &install.Guard{}, Installed: func() { s.installs.Add(1) },
	}
	var err error
	if err = packages.MakePackageDir(); err != nil {
		return err
	}
	if cfg.Egress != "" {
		if s.egress, err = transport.ListenEgress(s.life, transport.EgressConfig{Addr: cfg.Egress, Workers: &s.sessions, Proxy: cfg.Proxy, Before: packages.Guard.Check}); err != nil {
			return err
		}
		packages.IndexAddr = s.egress.Addr()
	}
	env := packages.Environment()
	s.makeProfile(env)
	if s.egress != nil && cfg.Proxy {
		env = proxyEnvironment(env, s.egress.Addr())
		if env, err = trustEnvironment(env, cfg); err != nil {
			return err
		}
	}
	s.commands = &process.Commands{Reaper: s.reaper, Workspace: cfg.Workspace, Image: image, Env: env}
	s.kernels = kernel.New(s.life, kernel.Config{
		RunDir: cfg.RunDir, TmpDir: cfg.TmpDir, Workspace: cfg.Workspace, Image: image, Env: env,
		Reaper: s.reaper, Installed: s.installs.Load, Measure: s.measured,
	})
	packages.Kernels = s.kernels
	packages.Python = kernel.NewProber(kernel.ProberConfig{
		RunDir: cfg.RunDir, HomeDir: cfg.HomeDir, Workspace: cfg.Workspace, Reaper: s.reaper, Image: image, Env: env,
	})
	s.installer = install.New(s.life, packages)
	return nil
}

// EgressAddr is where programs of the sandbox reach the package indexes and the proxy; empty when Config.Egress is.
func (s *Server) EgressAddr() string {
	if s.egress == nil {
		return ""
	}
	return s.egress.Addr()
}

// ServeConn serves one stream until it ends or ctx is done. Several may be served at once.
func (s *Server) ServeConn(ctx context.Context, conn io.ReadWriteCloser) error {
	config := yamux.DefaultConfig()
	config.MaxStreamWindowSize = streamWindow
	config.ConnectionWriteTimeout = writeTimeout
	config.LogOutput = io.Discard
	session, err := yamux.Server(agent.Joined(conn), config)
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

// Close kills every process it started and waits for them. It is idempotent.
func (s *Server) Close() error {
	var err error
	s.once.Do(func() {
		s.deadline.stop()
		s.executions.close()
		s.processes.close()
		s.livefiles.close()
		s.endLife()
		if s.kernels != nil {
			s.kernels.Close()
		}
		if s.egress != nil {
			s.egress.Close()
		}
		s.reaper.Close()
		err = s.files.Close()
	})
	return err
}

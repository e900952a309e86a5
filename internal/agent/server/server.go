// Package server is the agent, PID 1 of a sandbox. It serves executions, files and packages over HTTP on yamux sessions, and
// combines the packages that do the work: process, kernel, install, files and egress. It runs each execution id once in the
// life of the sandbox, keeps frames until they are acknowledged or the execution is forgotten, and its outcome after that, and kills
// every process of a stopped execution that it can find. It does not isolate anything: it runs with the uid of user code, and the sandbox
// around it is the isolation.
package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
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
	"github.com/sandfarm/sandfarm/internal/farm"
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

// Config holds the agent's paths and settings. Tests run an agent as an ordinary process in temporary directories.
type Config struct {
	Version   string       // shown in Info
	Workspace string       // default farm.Workspace
	RunDir    string       // the agent's own files; default agent.RunDir
	HomeDir   string       // HOME of user code; default agent.HomeDir
	TmpDir    string       // TMPDIR of user code; default agent.TmpDir
	Env       []string     // the sandbox's environment; nil means the process's own
	ReapAll   bool         // for PID 1: reap every child, not only those started here, and protect this process from them
	LogBytes  int          // unacknowledged bytes that an execution may hold; default agent.LogBytes
	Egress    string       // where programs reach the package indexes, such as agent.EgressAddr; empty: no access
	Proxy     bool         // Egress is a proxy too, and programs find it in HTTPS_PROXY and similar variables
	Authority []byte       // certificate that programs trust beside those of the image (X.509, DER); nil: none
	Program   string       // the agent's own program, which serves files as user code would; default agent.BinaryPath
	UV        string       // the installer of Python packages; default agent.UVPath. If it does not exist, pip is used
	Logger    *slog.Logger // default: silent

	Sockets   *process.HostLimit // ends the sandbox's programs when they have too many sockets; nil: they may have any number
	Terminals *process.HostLimit // the same for pseudo-terminals
	Memory    *process.HostLimit // the same for memory, where the kernel does not do it

	EndsIn time.Duration // time until the sandbox's deadline, until a worker changes it; 0: no deadline
	End    func()        // ends the sandbox a few seconds after its deadline; nil: the sandbox is not ended
}

// agent.LogBytes bounds the log of one execution.

func (c Config) withDefaults() Config {
	set := func(field *string, value string) {
		if *field == "" {
			*field = value
		}
	}
	set(&c.Workspace, farm.Workspace)
	set(&c.RunDir, agent.RunDir)
	set(&c.HomeDir, agent.HomeDir)
	set(&c.TmpDir, agent.TmpDir)
	set(&c.Version, "dev")
	set(&c.Program, agent.BinaryPath)
	set(&c.UV, agent.UVPath)
	if c.Env == nil {
		c.Env = os.Environ() //nolint:forbidigo // it is what the code of the sandbox gets, not settings
	}
	if c.LogBytes == 0 {
		c.LogBytes = agent.LogBytes
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Config) validate() error {
	if c.LogBytes < 1 {
		return errors.New("config: LogBytes must be positive")
	}
	return nil
}

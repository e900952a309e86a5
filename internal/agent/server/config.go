package server

import (
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/process"
	"github.com/sandfarm/sandfarm/internal/farm"
)

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

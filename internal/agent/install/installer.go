package install

import (
	"context"
	"path/filepath"
	"sync"

	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/agent/files"
	"github.com/sandfarm/sandfarm/internal/agent/kernel"
	"github.com/sandfarm/sandfarm/internal/agent/process"
)

// Kernels gives access to the running kernels.
type Kernels interface {
	// Ask queries the idle Python kernels of a context, or of kernel.All.
	Ask(contextName string, q kernel.Question) []kernel.Answer
}

// Config holds paths and what installs need.
type Config struct {
	HomeDir   string
	IndexAddr string   // where installers reach the package indexes; empty: no access
	UV        string   // the installer of Python packages; if it does not exist, pip is used
	Image     []string // the environment of the image, in which its programs are found
	Reaper    *process.Reaper
	Files     *files.Workspace
	Python    *kernel.Prober
	Kernels   Kernels
	Guard     *Guard // of memory
	Installed func() // called after every install that changed something
}

// Installer installs packages, one execution at a time. Create it with New.
type Installer struct {
	cfg    Config
	life   context.Context // the life of the agent
	turn   execution.FairLock
	listed requirementsSeen // used by the execution whose turn it is
	memory func() (held, limit int64)

	uvOnce sync.Once
	uvRuns bool // valid after uvOnce
}

// New creates an installer, whose requests to the index end with life. Config.MakePackageDir must have been called.
func New(life context.Context, cfg Config) *Installer {
	return &Installer{cfg: cfg, life: life, listed: requirementsSeen{}, memory: memoryInUse}
}

// packageDir is where Python packages are installed.
func (c Config) packageDir() string { return filepath.Join(c.HomeDir, ".packages") }

// nodeDir is npm's prefix.
func (c Config) nodeDir() string { return filepath.Join(c.HomeDir, ".node") }

// nodeModules is where Node packages are installed.
func (c Config) nodeModules() string { return filepath.Join(c.nodeDir(), "node_modules") }

// Package install installs Python and Node packages into a sandbox, and finds out which ones code needs. The installers (uv, pip,
// npm) run in the sandbox and reach the indexes through package egress. An install reports each package separately: one that
// cannot be installed does not prevent the others.
package install

import (
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/agent/files"
	"github.com/sandfarm/sandfarm/internal/agent/kernel"
	"github.com/sandfarm/sandfarm/internal/agent/process"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// noIndex is the message in a sandbox that cannot reach an index.
	noIndex = `This sandbox has network "none": create one with network "packages" to install.`
	// stoppedInstall and lateInstall are the messages for packages that a stopped install did not reach.
	stoppedInstall = "The installation was stopped before this package was installed."
	lateInstall    = "The installation reached its timeout before this package was installed: install fewer packages at once, or use a longer timeout."
	// installerOOMScore is the highest score: the kernel ends an installer before anything else.
	installerOOMScore = "1000"
	// workPrefix is the prefix of working directories.
	workPrefix = ".install-"
	// maxSeen bounds the files of requirements that are remembered.
	maxSeen = 1000
)

// Check refuses requests that no installer could fulfil. Its errors are for the caller.
func Check(in *agent.Install) error {
	switch {
	case in == nil:
		return farm.Invalidf("there is nothing to install")
	case in.Manager != farm.ManagerPip && in.Manager != farm.ManagerNpm:
		return farm.Invalidf("manager %q is neither %s nor %s", execution.Cut(in.Manager, 64), farm.ManagerPip, farm.ManagerNpm)
	case !in.Auto && len(in.Packages) == 0:
		return farm.Invalidf("there is no package to install")
	case len(in.Packages) > maxRequirements:
		return farm.Invalidf("%d packages are too many; at most %d are allowed", len(in.Packages), maxRequirements)
	}
	return nil
}

// installation is one execution that installs.
type installation struct {
	*execution.Execution
	s       *Installer
	work    string // its own directory, in the same file system as the installed packages
	began   time.Time
	timeout time.Duration
	printed ends           // output of the current step
	unshown *execution.Log // gets the standard error of the current step, which nobody reads; nil: the execution's log
	notes   []string
	seen    requirementsSeen // the requirement files that are new
	before  map[string]distribution

	indexTroubles int // how often the index failed to deliver
}

// Run installs what an execution requests, one execution at a time, and finishes the execution.
func (s *Installer) Run(e *execution.Execution) {
	in := &installation{Execution: e, s: s, timeout: e.Spec.Timeout, seen: requirementsSeen{}}
	if !s.turn.Lock(e.Stopped()) {
		e.Finish(in.neverStarted())
		return
	}
	defer s.turn.Unlock()
	e.Begin()
	in.began = time.Now()
	out := in.run()
	in.clean() // before the end is visible: nothing is left behind then
	out.RunMS = float64(time.Since(in.began).Microseconds()) / 1000
	e.Finish(out)
}

// neverStarted is the outcome of an installation that was stopped while it waited for its turn.
func (in *installation) neverStarted() agent.Outcome {
	out := execution.NotStarted()
	for _, text := range in.Spec.Install.Packages {
		r := parseRequirement(in.Spec.Install.Manager, text)
		r.problem = stoppedInstall
		out.Install = append(out.Install, r.outcome(""))
	}
	return out
}

// run fulfils the request. It does not compare the workspace, which installs do not change.
func (in *installation) run() agent.Outcome {
	spec := in.Spec.Install
	var wanted []*requirement
	for _, text := range spec.Packages {
		wanted = append(wanted, parseRequirement(spec.Manager, text))
	}
	if spec.Auto {
		wanted = append(wanted, in.findWanted()...)
	}
	var versions map[string]string
	if spec.Manager == farm.ManagerNpm {
		versions = in.installNode(wanted)
	} else {
		versions = in.installPython(wanted)
	}
	if !in.IsStopped() {
		if len(in.s.listed) > maxSeen {
			clear(in.s.listed)
		}
		maps.Copy(in.s.listed, in.seen)
	}
	out := agent.Outcome{Notes: in.notes}
	for _, r := range wanted {
		if r.why != "" && r.problem == "" && in.before[r.name].version == versions[r.name] && versions[r.name] != "" {
			continue // not requested by name, and already installed
		}
		if r.problem == "" && versions[r.name] == "" {
			switch {
			case in.IsStopped():
				r.problem = in.stopped().text
			case r.marked && r.why != "":
				continue // a line of a file whose environment marker is false here
			case r.marked:
				r.problem = r.name + " does not apply to this sandbox: its environment marker (the part after the semicolon) is false."
			default:
				r.problem = r.name + " is missing after the installation."
			}
		}
		if r.problem != "" {
			out.ExitCode = 1
		}
		out.Install = append(out.Install, r.outcome(versions[r.name]))
	}
	return out
}

// open lists the requirements that have not failed.
func open(wanted []*requirement) []*requirement {
	var list []*requirement
	for _, r := range wanted {
		if r.problem == "" {
			list = append(list, r)
		}
	}
	return list
}

// fail sets the problem of all requirements that have not failed.
func fail(list []*requirement, text string) {
	for _, r := range open(list) {
		r.problem = text
	}
}

// ready creates the working directory. It is in the home, since programs cannot run from /tmp and packages are moved by renaming.
func (in *installation) ready() error {
	if in.work != "" {
		return nil
	}
	in.s.sweepWork()
	work := filepath.Join(in.s.cfg.HomeDir, workPrefix+rand.Text())
	for _, dir := range []string{work, filepath.Join(work, "tmp")} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
	}
	in.work = work
	return nil
}

// sweepWork removes working directories left by earlier installs.
func (s *Installer) sweepWork() {
	for _, name := range readNames(s.cfg.HomeDir) {
		if strings.HasPrefix(name, workPrefix) {
			_ = os.RemoveAll(filepath.Join(s.cfg.HomeDir, name))
		}
	}
}

// clean removes the working directory, which frees its memory.
func (in *installation) clean() {
	if in.work != "" {
		_ = os.RemoveAll(in.work)
	}
}

// step runs one program and logs its output. The timeout covers all steps together.
func (in *installation) step(argv, env []string) *trouble {
	if in.IsStopped() {
		return in.stopped()
	}
	if in.timeout > 0 {
		in.Spec.Timeout = max(in.timeout-time.Since(in.began), time.Millisecond)
	}
	kills := process.Kills()
	began := time.Now()
	in.printed = ends{}
	p, err := in.s.cfg.Reaper.StartLogged(in.Execution, argv, env, in.work, process.Streams{Tee: in.printed.add, Errors: in.unshown})
	if errors.Is(err, syscall.EAGAIN) {
		return &trouble{text: "The installer could not be started: " + process.OutOfProcesses, fatal: true}
	}
	if err != nil {
		return &trouble{text: "The installer could not be started: " + err.Error() + ".", fatal: true}
	}
	// When memory runs out, the installer must be killed, not the kernel with its variables.
	_ = os.WriteFile("/proc/"+strconv.Itoa(p.PID)+"/oom_score_adj", []byte(installerOOMScore), 0)
	full := in.guardMemory(p)
	in.s.cfg.Reaper.Wait(in.Execution, p)
	short := full()
	if in.IsStopped() {
		return in.stopped()
	}
	if p.ExitCode() == 0 {
		return nil
	}
	t := &trouble{output: in.printed.text(), took: time.Since(began)}
	if short || process.Kills() > kills {
		t.memory = true
		in.forget()          // unpacked files use memory that user code and the next package need
		debug.FreeOSMemory() // and so does what this process has buffered of the download
	}
	return t
}

// forget removes everything from the working directory.
func (in *installation) forget() {
	for _, name := range readNames(in.work) {
		_ = os.RemoveAll(filepath.Join(in.work, name))
	}
	_ = os.Mkdir(filepath.Join(in.work, "tmp"), 0o700) // best effort: without it the next installer reports the error
}

// stopped returns the reason why the installation was stopped.
func (in *installation) stopped() *trouble {
	if in.StopReason() == execution.StopTimeout {
		return &trouble{text: lateInstall, fatal: true}
	}
	return &trouble{text: stoppedInstall, fatal: true}
}

// ends keeps the beginning of a stream, where installers report errors, and its end, where builds do.
type ends struct {
	head []byte
	tail process.Tail
}

// headBytes is how much of the beginning is kept.
const headBytes = 4 << 10

// add appends bytes. Only one caller adds, and text is read only after it has ended.
func (e *ends) add(b []byte) {
	if room := headBytes - len(e.head); room > 0 {
		n := min(room, len(b))
		e.head = append(e.head, b[:n]...)
		b = b[n:]
	}
	e.tail.Add(b)
}

// text returns both.
func (e *ends) text() string {
	return execution.StripANSI(strings.ToValidUTF8(string(e.head), "\uFFFD")) + e.tail.String()
}

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

	uvRuns bool // uv was started here; used by the execution whose turn it is
}

// New creates an installer, whose requests to the index end with life. Config.MakePackageDir must have been called.
func New(life context.Context, cfg Config) *Installer {
	return &Installer{cfg: cfg, life: life, listed: requirementsSeen{}, memory: process.HeldMemory}
}

// packageDir is where Python packages are installed.
func (c Config) packageDir() string { return filepath.Join(c.HomeDir, ".packages") }

// nodeDir is npm's prefix.
func (c Config) nodeDir() string { return filepath.Join(c.HomeDir, ".node") }

// nodeModules is where Node packages are installed.
func (c Config) nodeModules() string { return filepath.Join(c.nodeDir(), "node_modules") }

// memoryCheck is the time between two checks of an installer that downloads nothing; it unpacks less in it than must be free.
const memoryCheck = 20 * time.Millisecond

// Guard ends the installer that runs before the files that it unpacks use up the sandbox's memory (process.MemoryShort). The zero value guards
// nothing yet.
type Guard struct{ check atomic.Pointer[func()] }

// Check looks at the memory at once. It is called before an installer gets a piece of a download: on a busy machine it could otherwise unpack
// more between two checks than there is memory for.
func (g *Guard) Check() {
	if check := g.check.Load(); check != nil {
		(*check)()
	}
}

// guardMemory lets the guard watch an installer. The caller calls the returned function when the program has ended; reached reports whether it
// was killed.
func (in *installation) guardMemory(p *process.Logged) (reached func() bool) {
	if _, limit := in.s.memory(); limit <= 0 {
		return func() bool { return false }
	}
	var mu sync.Mutex
	full := false
	check := func() {
		mu.Lock()
		defer mu.Unlock()
		if full || !process.MemoryShort(in.s.memory()) {
			return
		}
		full = true
		in.s.cfg.Reaper.Signal(p.Process, syscall.SIGKILL)
		process.KillTree(p.PID, in.Mark())
	}
	done := make(chan struct{})
	var ticking sync.WaitGroup
	ticking.Go(func() {
		tick := time.NewTicker(memoryCheck)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				check()
			}
		}
	})
	in.s.cfg.Guard.check.Store(&check)
	return func() bool {
		in.s.cfg.Guard.check.Store(nil)
		close(done)
		ticking.Wait()
		mu.Lock()
		defer mu.Unlock()
		return full
	}
}

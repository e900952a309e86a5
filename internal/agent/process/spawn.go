package process

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Logged is a process whose output goes to the log of its execution.
type Logged struct {
	*Process
	Input    *Input // what writes to it; nil: its input is empty
	out, err *Pump  // with a terminal there is only out
}

// Streams say what a program reads and writes. The zero value is an empty input and two pipes.
type Streams struct {
	Tee      func([]byte)       // also gets its standard error; nil: discarded
	Errors   *execution.Log     // gets its standard error; nil: the execution's log
	Input    bool               // its input is a pipe
	Terminal *farm.TerminalSize // all three are a terminal of this size
	Before   *Input             // the input that continues with this program; nil: a new one
}

// StartLogged starts a program whose outputs go to the execution's log. The caller must then call Wait.
func (r *Reaper) StartLogged(e *execution.Execution, argv, env []string, dir string, io Streams) (*Logged, error) {
	if io.Terminal != nil {
		return r.startOnTerminal(e, argv, env, dir, *io.Terminal, io.Before)
	}
	stdin, input, err := openInput(io.Input, io.Before)
	if err != nil {
		return nil, err
	}
	defer func() { _ = syscall.Close(stdin) }()
	var out, errs [2]int
	if err := unix.Pipe2(out[:], unix.O_CLOEXEC); err != nil {
		input.leave()
		return nil, fmt.Errorf("make pipe: %w", err)
	}
	defer func() { _ = syscall.Close(out[1]) }()
	if err := unix.Pipe2(errs[:], unix.O_CLOEXEC); err != nil {
		input.leave()
		_ = syscall.Close(out[0])
		return nil, fmt.Errorf("make pipe: %w", err)
	}
	defer func() { _ = syscall.Close(errs[1]) }()
	files := []uintptr{uintptr(stdin), uintptr(out[1]), uintptr(errs[1])} //nolint:gosec // descriptors are small
	p, err := r.Start(argv, env, dir, files)
	if err != nil {
		input.leave()
		_, _ = syscall.Close(out[0]), syscall.Close(errs[0])
		return nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	longest := maxPause
	if io.Input { // somebody may wait for its answer before the next request
		longest = minPause
	}
	return &Logged{
		Process: p, Input: input,
		out: r.pump(out[0], agent.FrameStdout, e.Log, nil, longest),
		err: r.pump(errs[0], agent.FrameStderr, cmp.Or(io.Errors, e.Log), io.Tee, longest),
	}, nil
}

// openInput opens what a child reads, and what writes to it; nil if that is nothing. before is what wrote to the child that this one replaces.
func openInput(pipe bool, before *Input) (child int, input *Input, err error) {
	if !pipe {
		if child, err = OpenNull(); err != nil {
			return 0, nil, fmt.Errorf("open null device: %w", err)
		}
		return child, nil, nil
	}
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return 0, nil, fmt.Errorf("make pipe: %w", err)
	}
	return ends[0], before.next(ends[1], false), nil
}

// Wait waits for the program, stops it when its execution is stopped, and logs its output. Background processes that it leaves
// keep running, unless the execution was stopped: then they are killed too.
func (r *Reaper) Wait(e *execution.Execution, p *Logged) {
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		e.Watch(execution.Stopper{
			Interrupt: func(sig syscall.Signal) { r.Signal(p.Process, sig) },
			Kill: func() {
				r.Signal(p.Process, syscall.SIGKILL)
				KillTree(p.PID, e.Mark())
			},
		}, p.done)
	}()
	<-p.done
	<-watched
	if e.IsStopped() {
		KillTree(p.PID, e.Mark())
		r.KillStrays(e.BeginTicks())
	}
	if p.err == nil { // a terminal
		p.out.settle()
	} else {
		p.err.Finish()
	}
	p.out.Finish()
	p.Input.leave()
}

// startOnTerminal starts a program on a terminal of its own. The libraries for terminals start programs by os/exec, which the agent cannot use
// (see Reaper); what is left of them are the three calls of openTerminal.
func (r *Reaper) startOnTerminal(e *execution.Execution, argv, env []string, dir string, size farm.TerminalSize, before *Input) (*Logged, error) {
	ours, theirs, err := openTerminal(size)
	if err != nil {
		return nil, fmt.Errorf("open a terminal: %w", err)
	}
	defer func() { _ = syscall.Close(theirs) }()
	write, err := unix.FcntlInt(uintptr(ours), unix.F_DUPFD_CLOEXEC, 0) //nolint:gosec // a descriptor is small
	if err != nil {
		_ = syscall.Close(ours)
		return nil, fmt.Errorf("open a terminal: %w", err)
	}
	input := before.next(write, true)
	p, err := r.start(argv, &syscall.ProcAttr{
		Dir: dir, Env: env, Files: []uintptr{uintptr(theirs), uintptr(theirs), uintptr(theirs)}, //nolint:gosec // descriptors are small
		Sys: &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0},
	})
	if err != nil {
		input.leave()
		_ = syscall.Close(ours)
		return nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	return &Logged{Process: p, Input: input, out: r.pump(ours, agent.FrameStdout, e.Log, nil, 0)}, nil // somebody waits for the echo of a key
}

// openTerminal opens a terminal: our end, and that of its programs.
func openTerminal(size farm.TerminalSize) (ours, theirs int, err error) {
	ours, err = unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, 0, os.NewSyscallError("open", err)
	}
	number, err := unix.IoctlGetInt(ours, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(ours, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = setSize(ours, size)
	}
	if err == nil {
		theirs, err = unix.Open("/dev/pts/"+strconv.Itoa(number), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		_ = unix.Close(ours)
		return 0, 0, err
	}
	return ours, theirs, nil
}

func setSize(fd int, size farm.TerminalSize) error {
	return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(size.Rows), Col: uint16(size.Cols)}) //nolint:gosec // at most farm.MaxTerminalSide
}

// WithEnv returns a copy of an environment with variables set. Invalid names and values are left out.
func WithEnv(env []string, set map[string]string) []string {
	out := make([]string, 0, len(env)+len(set))
	for _, kv := range env {
		name, _, ok := strings.Cut(kv, "=")
		if _, replaced := set[name]; ok && !replaced {
			out = append(out, kv)
		}
	}
	names := make([]string, 0, len(set))
	for name := range set {
		if name != "" && !strings.ContainsAny(name, "=\x00") && !strings.Contains(set[name], "\x00") {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	for _, name := range names {
		out = append(out, name+"="+set[name])
	}
	return out
}

// Getenv returns a variable of an environment; empty if it is not set.
func Getenv(env []string, name string) string {
	value := ""
	for _, kv := range env {
		if rest, ok := strings.CutPrefix(kv, name+"="); ok {
			value = rest
		}
	}
	return value
}

// LookPath finds the first of the named programs in the PATH of an environment; empty if there is none.
func LookPath(env []string, names ...string) string {
	for _, name := range names {
		for _, kv := range env {
			list, ok := strings.CutPrefix(kv, "PATH=")
			if !ok {
				continue
			}
			for _, dir := range filepath.SplitList(list) {
				path := filepath.Join(dir, name)
				if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 && filepath.IsAbs(path) {
					return path
				}
			}
		}
	}
	return ""
}

// OpenNull opens /dev/null as the input or output of a child. The caller closes the descriptor.
func OpenNull() (int, error) {
	return syscall.Open(os.DevNull, syscall.O_RDWR|syscall.O_CLOEXEC, 0)
}

package process

import (
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/farm"
)

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
	return &Logged{Process: p, Input: input, out: r.pump(ours, agent.FrameStdout, e.Log, nil, true)}, nil
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

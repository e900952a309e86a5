package process

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/execution"
)

// Logged is a process whose output goes to the log of its execution.
type Logged struct {
	*Process
	out, err *Pump
}

// StartLogged starts a program with empty input, whose outputs go to the execution's log. tee, when not nil, also gets its
// standard error. The caller must then call Wait.
func (r *Reaper) StartLogged(e *execution.Execution, argv, env []string, dir string, tee func([]byte)) (*Logged, error) {
	null, err := OpenNull()
	if err != nil {
		return nil, fmt.Errorf("open null device: %w", err)
	}
	defer func() { _ = syscall.Close(null) }()
	var out, errs [2]int
	if err := unix.Pipe2(out[:], unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("make pipe: %w", err)
	}
	defer func() { _ = syscall.Close(out[1]) }()
	if err := unix.Pipe2(errs[:], unix.O_CLOEXEC); err != nil {
		_ = syscall.Close(out[0])
		return nil, fmt.Errorf("make pipe: %w", err)
	}
	defer func() { _ = syscall.Close(errs[1]) }()
	files := []uintptr{uintptr(null), uintptr(out[1]), uintptr(errs[1])} //nolint:gosec // descriptors are small
	p, err := r.Start(argv, env, dir, files)
	if err != nil {
		_, _ = syscall.Close(out[0]), syscall.Close(errs[0])
		return nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	return &Logged{
		Process: p,
		out:     r.Pump(out[0], agent.FrameStdout, e.Log, nil),
		err:     r.Pump(errs[0], agent.FrameStderr, e.Log, tee),
	}, nil
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
	p.out.Finish()
	p.err.Finish()
}

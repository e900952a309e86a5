package server

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent"
)

// spawned is a child whose output goes to a log.
type spawned struct {
	*process
	out, err *pump
}

// spawn starts a program with empty input and both outputs in the log. tee, when not nil, sees its standard error.
func (s *Server) spawn(e *execution, argv, env []string, dir string, tee func([]byte)) (*spawned, error) {
	null, err := openNull()
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
	p, err := s.reaper.start(argv, env, dir, files)
	if err != nil {
		_, _ = syscall.Close(out[0]), syscall.Close(errs[0])
		return nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	return &spawned{
		process: p,
		out:     newPump(out[0], agent.FrameStdout, e.log, s.buffers, nil),
		err:     newPump(errs[0], agent.FrameStderr, e.log, s.buffers, tee),
	}, nil
}

// wait waits for the program itself, under the watch of its execution, and takes what it has written. What it has left running goes
// on, unless the execution was stopped: then that ends too.
func (s *Server) wait(e *execution, p *spawned) {
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		e.watch(stopper{
			interrupt: func(sig syscall.Signal) { s.reaper.signal(p.process, sig) },
			kill: func() {
				s.reaper.signal(p.process, syscall.SIGKILL)
				killTree(p.pid, e.mark())
			},
		}, p.done)
	}()
	<-p.done
	<-watched
	if e.isStopped() {
		killTree(p.pid, e.mark())
		s.killStrays(e.since())
	}
	p.out.finish()
	p.err.finish()
}

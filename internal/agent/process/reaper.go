package process

import (
	"errors"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// reapInterval is how often children are reaped even without a signal, in case one was lost.
const reapInterval = time.Second

// oomScore makes the kernel's out-of-memory killer kill user code before the agent, which has 700 or less. Child processes inherit it.
const oomScore = "950"

// Reaper starts processes and is the only waiter for them. As PID 1 it also reaps orphans, so nothing in the agent may
// use os/exec: two waiters would steal each other's children. Create it with NewReaper and stop it with Close.
type Reaper struct {
	all     bool
	buffers *sync.Pool // for pumps
	mu      sync.Mutex
	procs   map[int]*Process
	stop    chan struct{}
	wg      sync.WaitGroup
	starts  chan<- func() // runs them on the thread with the filter; nil: there is none, see Protect
}

// Process is a child process.
type Process struct {
	PID    int
	done   chan struct{}
	status syscall.WaitStatus
}

// NewReaper creates a reaper. all makes it reap every child, not only those that it started: for PID 1.
func NewReaper(all bool) *Reaper {
	r := &Reaper{all: all, buffers: newBufferPool(), procs: map[int]*Process{}, stop: make(chan struct{})}
	r.wg.Go(r.loop)
	return r
}

// Close stops reaping. Running processes keep running.
func (r *Reaper) Close() {
	close(r.stop)
	r.wg.Wait()
}

func (r *Reaper) loop() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGCHLD)
	defer signal.Stop(signals)
	tick := time.NewTicker(reapInterval)
	defer tick.Stop()
	for {
		r.reap()
		select {
		case <-signals:
		case <-tick.C:
		case <-r.stop:
			return
		}
	}
}

// reap collects every child that has ended. The lock keeps a child from being collected before start has registered it.
func (r *Reaper) reap() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.all {
		for pid := range r.procs {
			r.wait(pid)
		}
		return
	}
	for r.wait(-1) {
	}
}

// wait collects one child if it has ended. The caller holds mu.
func (r *Reaper) wait(pid int) bool {
	var status syscall.WaitStatus
	got, err := syscall.Wait4(pid, &status, syscall.WNOHANG, nil)
	for errors.Is(err, syscall.EINTR) {
		got, err = syscall.Wait4(pid, &status, syscall.WNOHANG, nil)
	}
	if err != nil || got <= 0 {
		return false
	}
	if p := r.procs[got]; p != nil {
		delete(r.procs, got)
		p.status = status
		close(p.done)
	}
	return true
}

// Start runs the program argv[0] in a session of its own. files are its descriptors from 0 on.
func (r *Reaper) Start(argv, env []string, dir string, files []uintptr) (*Process, error) {
	return r.start(argv, &syscall.ProcAttr{Dir: dir, Env: env, Files: files, Sys: &syscall.SysProcAttr{Setsid: true}})
}

func (r *Reaper) start(argv []string, attr *syscall.ProcAttr) (*Process, error) {
	r.mu.Lock()
	pid, err := r.forkExec(argv, attr)
	if err != nil {
		r.mu.Unlock()
		return nil, err
	}
	p := &Process{PID: pid, done: make(chan struct{})}
	r.procs[pid] = p
	r.mu.Unlock()
	_ = os.WriteFile("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", []byte(oomScore), 0) // best effort: the process may have exited already
	return p, nil
}

// forkExec starts a program on the thread with the filter, if there is one.
func (r *Reaper) forkExec(argv []string, attr *syscall.ProcAttr) (pid int, err error) {
	if r.starts == nil {
		return syscall.ForkExec(argv[0], argv, attr)
	}
	done := make(chan struct{})
	select {
	case r.starts <- func() {
		defer close(done)
		pid, err = syscall.ForkExec(argv[0], argv, attr)
	}:
		<-done
		return pid, err
	case <-r.stop:
		return 0, os.ErrClosed
	}
}

// pids returns the processes started by Start that have not ended.
func (r *Reaper) pids() map[int]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	pids := make(map[int]bool, len(r.procs))
	for pid := range r.procs {
		pids[pid] = true
	}
	return pids
}

// Signal sends a signal to the process's group, unless the process has ended: its pid may have been reused.
func (r *Reaper) Signal(p *Process, sig syscall.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.procs[p.PID] == p {
		_ = syscall.Kill(-p.PID, sig)
	}
}

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// ExitCode is the exit code as a shell counts it: 128 plus the signal for a kill. It may be called once Done is closed.
func (p *Process) ExitCode() int {
	if p.status.Signaled() {
		return 128 + int(p.status.Signal())
	}
	return p.status.ExitStatus()
}

// KilledBy returns the signal that ended the process, 0 if it exited. It may be called once Done is closed.
func (p *Process) KilledBy() syscall.Signal {
	if p.status.Signaled() {
		return p.status.Signal()
	}
	return 0
}

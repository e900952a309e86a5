package server

import (
	"errors"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// reapInterval is how often children are looked for even without a signal, in case one was lost.
const reapInterval = time.Second

// oomScore makes the kernel's out-of-memory killer take user code before the agent. It is inherited by what the code starts.
const oomScore = "700"

// reaper starts processes and is the only one that waits for any. As PID 1 it also reaps orphans, which is why nothing here may use
// os/exec: two waiters would steal each other's children.
type reaper struct {
	all   bool
	mu    sync.Mutex
	procs map[int]*process
	stop  chan struct{}
	wg    sync.WaitGroup
}

// process is a child. status may be read once done is closed.
type process struct {
	pid    int
	done   chan struct{}
	status syscall.WaitStatus
}

func newReaper(all bool) *reaper {
	r := &reaper{all: all, procs: map[int]*process{}, stop: make(chan struct{})}
	r.wg.Go(r.loop)
	return r
}

func (r *reaper) close() {
	close(r.stop)
	r.wg.Wait()
}

func (r *reaper) loop() {
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

// reap collects every child that has ended. The lock keeps a child from being collected before start has noted it.
func (r *reaper) reap() {
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
func (r *reaper) wait(pid int) bool {
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

// start runs argv[0] in a session of its own.
func (r *reaper) start(argv, env []string, dir string, files []uintptr) (*process, error) {
	attr := &syscall.ProcAttr{Dir: dir, Env: env, Files: files, Sys: &syscall.SysProcAttr{Setsid: true}}
	r.mu.Lock()
	pid, err := syscall.ForkExec(argv[0], argv, attr)
	if err != nil {
		r.mu.Unlock()
		return nil, err
	}
	p := &process{pid: pid, done: make(chan struct{})}
	r.procs[pid] = p
	r.mu.Unlock()
	_ = os.WriteFile("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", []byte(oomScore), 0) // best effort: it may be gone already
	return p, nil
}

// pids gives the processes that were started here and have not ended.
func (r *reaper) pids() map[int]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	pids := make(map[int]bool, len(r.procs))
	for pid := range r.procs {
		pids[pid] = true
	}
	return pids
}

// signal sends to the process's group while the process is there, so never to a number used again.
func (r *reaper) signal(p *process, sig syscall.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.procs[p.pid] == p {
		_ = syscall.Kill(-p.pid, sig)
	}
}

// code is the exit code as a shell counts it: 128 and the signal for a kill.
func (p *process) code() int {
	if p.status.Signaled() {
		return 128 + int(p.status.Signal())
	}
	return p.status.ExitStatus()
}

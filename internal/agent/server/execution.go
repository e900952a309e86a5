package server

import (
	"encoding/json"
	"sync"
	"syscall"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// defaultGrace is what code has to end after an interrupt.
const defaultGrace = 2 * time.Second

// maxOutcomeBytes bounds a final frame under agent.MaxFrameBytes.
const maxOutcomeBytes = agent.MaxFrameBytes

// stopState is how far the stopping of an execution is.
type stopState int

const (
	stopNone stopState = iota
	stopTimeout
	stopInterrupt
	stopCancel
)

// execution is one run of code or commands. It goes queued, running, ended; stop may come at any time.
type execution struct {
	id      string
	spec    agent.Spec
	log     *frameLog
	started time.Time
	done    chan struct{} // closed when the final frame is in the log

	mu      sync.Mutex
	stop    stopState
	stopped chan struct{} // closed by the first stop
	killed  chan struct{} // closed when it is to end at once
	kill    sync.Once
	cancel  bool   // canceled at any time, also after an interrupt
	running bool   // its turn in its context has come
	begun   uint64 // when, in ticks since the boot
}

func newExecution(id string, spec agent.Spec, limit int, now time.Time) *execution {
	return &execution{
		id: id, spec: spec, log: newFrameLog(limit), started: now,
		done: make(chan struct{}), stopped: make(chan struct{}), killed: make(chan struct{}),
	}
}

// requestStop begins the stopping. The first reason counts, but a cancel always marks it canceled.
func (e *execution) requestStop(reason stopState) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cancel = e.cancel || reason == stopCancel
	if e.stop == stopNone {
		e.stop = reason
		close(e.stopped)
	}
}

// requestKill makes it end without a grace.
func (e *execution) requestKill() {
	e.requestStop(stopCancel)
	e.kill.Do(func() { close(e.killed) })
}

func (e *execution) stopReason() stopState {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stop
}

func (e *execution) canceled() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.cancel
}

// begin notes that its turn has come.
func (e *execution) begin() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.running, e.begun = true, bootTicks()
}

// since is when its turn came, in ticks since the boot; 0 before.
func (e *execution) since() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.begun
}

func (e *execution) hasBegun() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.running
}

func (e *execution) isStopped() bool { return e.stopReason() != stopNone }

// mark is in the environment of everything that the execution starts.
func (e *execution) mark() string { return "SBX_EXEC=" + e.id }

// stopper is what a runner lends to the watch over its execution.
type stopper struct {
	interrupt func(sig syscall.Signal)
	kill      func()
}

// watch enforces timeout, stop and grace until ended is closed. It runs beside the runner.
func (e *execution) watch(s stopper, ended <-chan struct{}) {
	var timeout <-chan time.Time
	if e.spec.Timeout > 0 {
		timer := time.NewTimer(e.spec.Timeout)
		defer timer.Stop()
		timeout = timer.C
	}
	select {
	case <-ended:
		return
	case <-timeout:
		e.requestStop(stopTimeout)
	case <-e.stopped:
	}
	sig := syscall.SIGTERM
	if e.stopReason() == stopInterrupt {
		sig = syscall.SIGINT
	}
	e.log.force() // a log that nobody reads must not keep it from ending
	s.interrupt(sig)
	grace := e.spec.Grace
	if grace <= 0 {
		grace = defaultGrace
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-ended:
		return
	case <-timer.C:
	case <-e.killed:
	}
	s.kill()
}

// finish writes the final frame.
func (e *execution) finish(out agent.Outcome) {
	out.TimedOut = e.stopReason() == stopTimeout
	out.Canceled = e.canceled()
	trimError(out.Error)
	payload, err := json.Marshal(out)
	if err != nil || len(payload) > maxOutcomeBytes {
		out.Skipped += len(out.Files)
		out.Files, out.Error = nil, &farm.CodeError{Name: "ResultTooLarge", Value: "the result does not fit into a frame"}
		payload, _ = json.Marshal(out) // plain fields only: it cannot fail
	}
	e.log.end(payload)
	close(e.done)
}

// interruptedOutcome is that of an execution that was stopped before it began.
func interruptedOutcome() agent.Outcome {
	return agent.Outcome{ExitCode: 1, Error: &farm.CodeError{
		Name: "KeyboardInterrupt", Value: "stopped before it began", Traceback: []string{},
	}}
}

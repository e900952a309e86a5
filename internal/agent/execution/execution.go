// Package execution holds one execution of the agent: what it runs, how it is stopped, and the log of its frames. The packages
// that run code, commands and installs take an Execution; package server keeps the executions by id and serves their logs.
package execution

import (
	"encoding/json"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// defaultGrace is how long code may keep running after an interrupt before it is killed.
const defaultGrace = 2 * time.Second

// maxOutcomeBytes bounds the payload of a final frame.
const maxOutcomeBytes = agent.MaxFrameBytes

// Stop says why an execution is being stopped.
type Stop int

// The reasons. The zero value means not stopped.
const (
	StopNone Stop = iota
	StopTimeout
	StopInterrupt
	StopCancel
	StopOutput // a stream exceeded Spec.MaxOutput
)

// exitKilled is the exit code of code that was ended.
const exitKilled = 128 + int(syscall.SIGKILL)

// Execution is one run of code, of commands or of an installer. Create it with New. The runner calls Begin when its turn has
// come, writes output to Log, and calls Finish at the end. It may be stopped at any time.
type Execution struct {
	ID      string
	Spec    agent.Spec
	Log     *Log
	Created time.Time

	stopped  chan struct{} // closed by the first stop
	killed   chan struct{} // closed by Kill
	killOnce sync.Once

	mu         sync.Mutex
	stop       Stop
	canceled   bool // also when it was interrupted before
	begun      bool
	beginTicks uint64
	finished   bool
	outcome    agent.Outcome // once it has finished
}

// New creates an execution whose log holds at most logBytes of unacknowledged frames.
func New(id string, spec agent.Spec, logBytes int, now time.Time) *Execution {
	e := &Execution{
		ID: id, Spec: spec, Log: NewLog(logBytes), Created: now,
		stopped: make(chan struct{}), killed: make(chan struct{}),
	}
	var beyond func()
	if spec.StopAtMaxOutput {
		beyond = func() { e.Stop(StopOutput) }
	}
	e.Log.limitOutput(max(spec.MaxOutput, 0), len(spec.Commands), beyond)
	return e
}

// Stop requests that the execution end. The first reason counts, but a cancel always marks it canceled.
func (e *Execution) Stop(reason Stop) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.canceled = e.canceled || reason == StopCancel
	if e.stop == StopNone {
		e.stop = reason
		close(e.stopped)
	}
}

// Kill cancels the execution without a grace period.
func (e *Execution) Kill() {
	e.Stop(StopCancel)
	e.killOnce.Do(func() { close(e.killed) })
}

// StopReason returns the reason of the first Stop.
func (e *Execution) StopReason() Stop {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stop
}

// IsStopped reports whether Stop was called.
func (e *Execution) IsStopped() bool { return e.StopReason() != StopNone }

// Stopped is closed by the first Stop.
func (e *Execution) Stopped() <-chan struct{} { return e.stopped }

// Killed is closed by Kill.
func (e *Execution) Killed() <-chan struct{} { return e.killed }

// Canceled reports whether the execution was canceled, even if something else stopped it first.
func (e *Execution) Canceled() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.canceled
}

// Begin records that the execution has started to run; before that it waits for its turn.
func (e *Execution) Begin() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.begun, e.beginTicks = true, bootTicks()
}

// HasBegun reports whether Begin was called.
func (e *Execution) HasBegun() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.begun
}

// BeginTicks is the time of Begin in ticks since boot, the unit of process start times in /proc. 0: not begun.
func (e *Execution) BeginTicks() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.beginTicks
}

// EnvName is the variable that holds the execution's id in the environment of all its processes.
const EnvName = "SBX_EXEC"

// Mark is the environment entry that identifies the execution's processes.
func (e *Execution) Mark() string { return EnvName + "=" + e.ID }

// Stopper holds the functions that stop a runner.
type Stopper struct {
	Interrupt func(sig syscall.Signal) // requests that the code end
	Kill      func()                   // ends it
}

// Watch enforces timeout, stop and grace period until ended is closed. It runs in a goroutine beside the runner.
func (e *Execution) Watch(s Stopper, ended <-chan struct{}) {
	var timeout <-chan time.Time
	if e.Spec.Timeout > 0 {
		timer := time.NewTimer(e.Spec.Timeout)
		defer timer.Stop()
		timeout = timer.C
	}
	select {
	case <-ended:
		return
	case <-timeout:
		e.Stop(StopTimeout)
	case <-e.stopped:
	}
	sig := syscall.SIGTERM
	if e.StopReason() == StopInterrupt {
		sig = syscall.SIGINT
	}
	e.Log.Unblock() // a log without a reader must not keep the code from ending
	s.Interrupt(sig)
	grace := e.Spec.Grace
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
	s.Kill()
}

// Finish writes the final frame. Only the first call counts.
func (e *Execution) Finish(out agent.Outcome) {
	out.TimedOut = e.StopReason() == StopTimeout
	out.Canceled = e.Canceled()
	if out.StoppedAtMaxOutput = e.StopReason() == StopOutput; out.StoppedAtMaxOutput && (out.ExitCode == 0 || e.Spec.Kind == farm.KindExecute) {
		out.ExitCode = exitKilled
	}
	trimError(out.Error)
	payload, err := json.Marshal(out)
	if err != nil || len(payload) > maxOutcomeBytes {
		out.Skipped += len(out.Files)
		out.Files, out.Error = nil, &farm.CodeError{Name: "ResultTooLarge", Value: "the result does not fit into a frame"}
		payload, _ = json.Marshal(out) // cannot fail: plain fields only
	}
	e.mu.Lock()
	if !e.finished {
		e.finished, e.outcome = true, out
	}
	e.mu.Unlock()
	e.Log.End(payload) // last: whoever has seen the final frame finds the outcome
}

// Outcome is how the execution ended; the zero value before Finish.
func (e *Execution) Outcome() agent.Outcome {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.outcome
}

// Failed is the outcome of an execution that failed in the agent itself.
func Failed(name, text string) agent.Outcome {
	return agent.Outcome{ExitCode: 1, Error: &farm.CodeError{Name: name, Value: text, Traceback: []string{}}}
}

// NotStarted is the outcome of an execution that was stopped before it started.
func NotStarted() agent.Outcome { return Failed("KeyboardInterrupt", "stopped before it started") }

// ticksPerSecond is the unit of times in /proc, the same on every Linux.
const ticksPerSecond = 100

// bootTicks is the time since boot in the unit of /proc. 0: unknown.
func bootTicks() uint64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return 0
	}
	return uint64(now.Sec)*ticksPerSecond + uint64(now.Nsec)/(1e9/ticksPerSecond) //nolint:gosec // both are positive
}

const (
	maxErrorLine      = 64 << 10 // of the traceback, and of the name
	maxTracebackBytes = 1 << 20
	lineCost          = 16 // what a traceback line counts in addition to its text, so that the number of empty lines is bounded
)

// ansiPattern matches the control sequences of terminals.
var ansiPattern = regexp.MustCompile("\x1b(?:\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b]*(?:\x07|\x1b\\\\)|[ -/]+[0-~]|[@-Z\\\\-_])")

// StripANSI removes the control sequences of terminals, such as colours.
func StripANSI(s string) string {
	if !strings.Contains(s, "\x1b") {
		return s
	}
	return ansiPattern.ReplaceAllString(s, "")
}

// trimError removes colours from an error and bounds it: it keeps the head of its value and the tail of its traceback.
func trimError(e *farm.CodeError) {
	if e == nil {
		return
	}
	e.Name, e.Value = Cut(StripANSI(e.Name), maxErrorLine), Cut(StripANSI(e.Value), farm.MaxErrorValueBytes)
	lines, size := []string{}, 0
	for i := len(e.Traceback) - 1; i >= 0; i-- {
		line := Cut(StripANSI(e.Traceback[i]), maxErrorLine)
		if size += len(line) + lineCost; size > maxTracebackBytes {
			lines = append(lines, "…")
			break
		}
		lines = append(lines, line)
	}
	for i, j := 0, len(lines)-1; i < j; i, j = i+1, j-1 {
		lines[i], lines[j] = lines[j], lines[i]
	}
	e.Traceback = lines
}

// Cut makes a text valid UTF-8 of at most n bytes, with an ellipsis where it was cut.
func Cut(s string, n int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

// FairLock is a FIFO lock: it is granted in the order of the calls of Lock. The zero value is unlocked.
type FairLock struct {
	mu      sync.Mutex
	locked  bool
	waiting []chan struct{}
}

// Lock waits for its turn. It returns false, without the lock, if quit was closed first.
func (l *FairLock) Lock(quit <-chan struct{}) bool {
	l.mu.Lock()
	if !l.locked {
		l.locked = true
		l.mu.Unlock()
		return true
	}
	turn := make(chan struct{})
	l.waiting = append(l.waiting, turn)
	l.mu.Unlock()
	select {
	case <-turn:
		return true
	case <-quit:
	}
	l.mu.Lock()
	for i, w := range l.waiting {
		if w == turn {
			l.waiting = append(l.waiting[:i], l.waiting[i+1:]...)
			l.mu.Unlock()
			return false
		}
	}
	l.mu.Unlock()
	l.Unlock() // the lock was granted at the same moment
	return false
}

// Unlock passes the lock to the longest waiter.
func (l *FairLock) Unlock() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) == 0 {
		l.locked = false
		return
	}
	close(l.waiting[0])
	l.waiting = l.waiting[1:]
}

package server

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/agent/process"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// keptProcesses is how many processes that have ended are kept with the end of their output.
	keptProcesses = 64
	// windowsPart is the part of the sandbox's memory that the output of all processes may take, and smallestWindow what one has at least.
	windowsPart    = 8
	smallestWindow = 256 << 10
)

// processes are what callers started beside jobs. Each is an execution with a log that keeps the end of its output.
type processes struct {
	window int // bytes of the log of one

	mu    sync.Mutex
	byID  map[string]*liveProcess
	ended []string // the oldest end first
	wg    sync.WaitGroup
	shut  bool
}

// liveProcess is one process, running or ended.
type liveProcess struct {
	*execution.Execution
	limit       int // readers
	fingerprint string

	mu     sync.Mutex
	logged *process.Logged // changes when it is started again
	shown  farm.Process
}

// newProcesses makes the table for a sandbox with this limit of memory; 0: unknown.
func newProcesses(memory int64) *processes {
	window := agent.WindowBytes
	if share := memory / windowsPart / keptProcesses; share > 0 {
		window = int(min(int64(window), max(share, smallestWindow)))
	}
	return &processes{window: window, byID: map[string]*liveProcess{}}
}

// startProcess starts a process. Starting an id again returns the process that it names. CodeConflict: that was another request.
func (s *Server) startProcess(id string, spec farm.ProcessSpec) (farm.Process, error) {
	withoutMissingHome(spec.Env)
	t := s.processes
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.byID[id]; p != nil {
		if p.fingerprint != spec.Fingerprint {
			return farm.Process{}, farm.Conflictf("The Idempotency-Key was used for another request (process %s). Use a new key.", id)
		}
		return p.describe(), nil
	}
	if t.shut {
		return farm.Process{}, farm.Errorf(farm.CodeUnavailable, "The agent is shutting down.")
	}
	if running := len(t.byID) - len(t.ended); running >= spec.MaxProcesses {
		return farm.Process{}, farm.Errorf(farm.CodeExhausted, "%d processes run in the sandbox, the most that callers may start. End some of them.", running)
	}
	e := execution.New(id, agent.Spec{Kind: farm.KindCommand, Cwd: spec.Cwd, Env: spec.Env, Timeout: spec.Timeout, Grace: spec.Grace}, 0, time.Now())
	e.Log = execution.NewRollingLog(t.window)
	if spec.Awaited {
		e.Log.Expect()
	}
	if spec.Terminal != nil && spec.Env["TERM"] == "" {
		e.Spec.Env = map[string]string{"TERM": defaultTerm}
		maps.Copy(e.Spec.Env, spec.Env)
	}
	e.Begin()
	logged, err := s.commands.Start(e, spec, nil)
	if err != nil {
		return farm.Process{}, err
	}
	p := &liveProcess{Execution: e, logged: logged, limit: spec.MaxReaders, fingerprint: spec.Fingerprint, shown: farm.Process{
		ID: id, PID: logged.PID, Name: spec.Name, State: farm.ProcessRunning, Command: spec.Command, Argv: spec.Argv, Terminal: spec.Terminal,
		Stdin: logged.Input != nil, Restart: spec.Restart, StartedAt: e.Created.UTC().Truncate(time.Microsecond),
	}}
	t.byID[id] = p
	if spec.Restart == farm.RestartOnFailure {
		logged.Input.Keep()
	}
	t.wg.Go(func() {
		out := s.runProcess(p, spec)
		p.note(out)
		t.end(id)
		p.Finish(out) // last: whoever has seen the exit finds that it does not count any more
	})
	if spec.Hangup > 0 {
		t.wg.Go(func() {
			if p.Log.Unread(spec.Hangup) {
				s.reaper.Signal(p.now().Process, syscall.SIGHUP)
			}
		})
	}
	return p.describe(), nil
}

// defaultTerm is the value of TERM for programs.
const defaultTerm = "xterm-256color"

// note keeps how a process ended.
func (p *liveProcess) note(out agent.Outcome) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.logged.Input.Close()
	p.shown.State, p.shown.EndedAt = farm.ProcessExited, time.Now().UTC().Truncate(time.Microsecond)
	p.shown.ProcessEnd = farm.ProcessEnd{
		ExitCode: &out.ExitCode, OutOfMemory: out.OutOfMemory, TimedOut: p.StopReason() == execution.StopTimeout, Stopped: p.Canceled(),
	}
}

// now is what runs, or what ran last.
func (p *liveProcess) now() *process.Logged {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.logged
}

func (p *liveProcess) describe() farm.Process {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.shown
}

// resize sets the size of a process's terminal.
func (p *liveProcess) resize(size farm.TerminalSize) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.logged.Input.Resize(size); err != nil {
		return err
	}
	p.shown.Terminal = &size
	return nil
}

// get finds a process.
func (t *processes) get(id string) (*liveProcess, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.byID[id]; p != nil {
		return p, nil
	}
	return nil, farm.NotFoundf("The sandbox has no process %q.", execution.Cut(id, 64))
}

// list describes all processes, the oldest first.
func (t *processes) list() []farm.Process {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]farm.Process, 0, len(t.byID))
	for _, p := range t.byID {
		out = append(out, p.describe())
	}
	slices.SortFunc(out, func(a, b farm.Process) int { return cmp.Or(a.StartedAt.Compare(b.StartedAt), cmp.Compare(a.ID, b.ID)) })
	return out
}

// end notes that a process has ended, and forgets the oldest ones beyond keptProcesses.
func (t *processes) end(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID[id] == nil {
		return
	}
	t.ended = append(t.ended, id)
	for len(t.ended) > keptProcesses {
		delete(t.byID, t.ended[0])
		t.ended = t.ended[1:]
	}
}

// remove forgets a process that has ended.
func (t *processes) remove(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if slices.Contains(t.ended, id) {
		delete(t.byID, id)
		t.ended = slices.DeleteFunc(t.ended, func(other string) bool { return other == id })
	}
}

// close kills all processes and waits for them.
func (t *processes) close() {
	t.mu.Lock()
	t.shut = true
	for _, p := range t.byID {
		p.Kill()
		p.Log.Unblock()
	}
	t.mu.Unlock()
	t.wg.Wait()
}

// checkSpec refuses what no process can be made of. The API has checked more.
func checkSpec(spec farm.ProcessSpec) error {
	switch {
	case (spec.Command == "") == (len(spec.Argv) == 0):
		return farm.Invalidf("give either command or argv")
	case spec.Terminal != nil && !spec.Terminal.Valid():
		return farm.Invalidf("pty has %d columns and %d rows; both are from 1 to %d", spec.Terminal.Cols, spec.Terminal.Rows, farm.MaxTerminalSide)
	case spec.Restart != "" && !slices.Contains(farm.Restarts(), spec.Restart):
		return farm.Invalidf("restart is %q; it is never or on-failure", execution.Cut(string(spec.Restart), 64))
	case len(spec.Argv) > 0 && spec.Argv[0] == "":
		return farm.Invalidf("argv begins with an empty text: it is the program")
	case strings.ContainsRune(spec.Command+spec.Cwd+strings.Join(spec.Argv, ""), 0):
		return farm.Invalidf("command, argv and cwd hold no NUL byte")
	}
	return nil
}

package service

import (
	"cmp"
	"context"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/relay"
)

// processGrace is how long a process may take to end after SIGTERM before it is killed.
const processGrace = 5 * time.Second

// agent finds the agent of a sandbox that has one now.
func (s *Service) agent(ctx context.Context, tenant, id string) (relay.Agent, error) {
	_, a, err := s.reach(ctx, tenant, id)
	return a, err
}

// reach is agent with the record of the sandbox.
func (s *Service) reach(ctx context.Context, tenant, id string) (*farm.Sandbox, relay.Agent, error) {
	box, err := s.sandbox(ctx, tenant, id)
	if err != nil {
		return nil, relay.Agent{}, err
	}
	switch {
	case box.State.Final():
		return nil, relay.Agent{}, farm.NoMoreWork(box.ID, box.State, box.Reason)
	case !box.State.Reachable():
		return nil, relay.Agent{}, farm.Conflictf("Sandbox %s is %s; its processes and ports can be reached while it is ready or busy.", box.ID, box.State)
	}
	if s.Agents == nil {
		return nil, relay.Agent{}, farm.Errorf(farm.CodeUnavailable, "This farm has no live path to its sandboxes.")
	}
	return box, s.Agents(box), nil
}

// SandboxUse is what a sandbox uses now. Asking is no use of it.
func (s *Service) SandboxUse(ctx context.Context, tenant, sandboxID string) (farm.SandboxUse, error) {
	a, err := s.agent(ctx, tenant, sandboxID)
	if err != nil {
		return farm.SandboxUse{}, err
	}
	return a.Use(ctx)
}

// StartProcess starts a process beside the sandbox's jobs; a call with the idempotency key of an earlier one gets the process of that one, as long
// as the sandbox lists it. Of the call it does not use Wait.
func (s *Service) StartProcess(ctx context.Context, c Call, sandboxID string, r wire.ProcessRequest) (wire.Process, error) {
	p := c.problems()
	spec := s.processSpec(p, r)
	spec.Awaited = c.Awaited
	if err := p.err(); err != nil {
		return wire.Process{}, err
	}
	idem, err := c.idempotency()
	if err != nil {
		return wire.Process{}, err
	}
	a, err := s.agent(ctx, c.Tenant, sandboxID)
	if err != nil {
		return wire.Process{}, err
	}
	id := farm.NewID(farm.ProcessPrefix)
	if idem != nil {
		id, spec.Fingerprint = farm.DerivedID(farm.ProcessPrefix, sandboxID, idem.Key), idem.Fingerprint
	}
	made, err := a.StartProcess(ctx, id, spec)
	return processOf(made), err
}

// processSpec checks a request for a process.
func (s *Service) processSpec(p *problems, r wire.ProcessRequest) farm.ProcessSpec {
	spec := farm.ProcessSpec{
		Argv: r.Argv, Cwd: r.Cwd, Env: r.Env, Name: r.Name, Stdin: r.Stdin, Grace: processGrace,
		MaxProcesses: s.limits.MaxProcesses, MaxReaders: s.limits.MaxProcessReaders, MaxRestarts: s.limits.MaxProcessRestarts,
		Restart: farm.Restart(cmp.Or(r.Restart, string(farm.RestartNever))),
	}
	if r.Command != nil {
		spec.Command = *r.Command
	}
	switch {
	case r.Command != nil && r.Argv != nil, r.Command == nil && r.Argv == nil:
		p.addf("", "give either command or argv")
	case r.Command != nil && spec.Command == "":
		p.addf("/command", "command is empty")
	case r.Command == nil && (len(r.Argv) == 0 || r.Argv[0] == ""):
		p.addf("/argv", "argv needs a program as its first entry")
	}
	size := len(spec.Command)
	for _, arg := range r.Argv {
		size += len(arg) + 1
	}
	if int64(size) > s.limits.MaxCodeBytes {
		p.check("", farm.Errorf(farm.CodeTooLarge, "command or argv has %d bytes; at most %d are allowed", size, s.limits.MaxCodeBytes))
	}
	if strings.ContainsRune(spec.Command, 0) {
		p.addf("/command", "command holds a NUL byte")
	}
	if slices.ContainsFunc(r.Argv, func(arg string) bool { return strings.ContainsRune(arg, 0) }) {
		p.addf("/argv", "argv holds a NUL byte")
	}
	if len(r.Cwd) > farm.MaxPathBytes || strings.ContainsRune(r.Cwd, 0) {
		p.addf("/cwd", "cwd is not a path")
	}
	s.checkEnv(p, r.Env)
	p.check("/name", s.checkName(r.Name))
	if r.PTY != nil {
		size := farm.TerminalSize(*r.PTY)
		spec.Terminal = &size
		p.check("/pty", checkSize(size))
	}
	if !slices.Contains(farm.Restarts(), spec.Restart) {
		p.addf("/restart", "restart is %q; it is never or on-failure", farm.Shorten(r.Restart))
	}
	if r.TimeoutSeconds != nil {
		spec.Timeout = time.Duration(s.timeout(p, r.TimeoutSeconds)) * time.Second
	}
	if r.HangupSeconds != nil {
		spec.Hangup = time.Duration(between(p, "/hangup_seconds", r.HangupSeconds, 0, 1, s.limits.TTLMaxSeconds)) * time.Second
	}
	return spec
}

func checkSize(size farm.TerminalSize) error {
	if !size.Valid() {
		return farm.Invalidf("a terminal has 1 to %d columns and rows, not %d and %d", farm.MaxTerminalSide, size.Cols, size.Rows)
	}
	return nil
}

// Processes lists the processes that callers started in a sandbox, and with all also those that run there for other reasons.
func (s *Service) Processes(ctx context.Context, tenant, sandboxID string, all bool) (wire.Processes, error) {
	a, err := s.agent(ctx, tenant, sandboxID)
	if err != nil {
		return wire.Processes{}, err
	}
	list, err := a.Processes(ctx)
	out := wire.Processes{Items: make([]wire.Process, len(list))}
	for i, p := range list {
		out.Items[i] = processOf(p)
	}
	if err != nil || !all {
		return out, err
	}
	running, err := a.Running(ctx)
	for _, p := range running {
		out.Running = append(out.Running, wire.RunningProcess(p))
	}
	return out, err
}

// process calls f with the agent that has a process.
func (s *Service) process(ctx context.Context, tenant, sandboxID, id string, f func(relay.Agent) (farm.Process, error)) (wire.Process, error) {
	a, err := s.agentOf(ctx, tenant, sandboxID, id)
	if err != nil {
		return wire.Process{}, err
	}
	p, err := f(a)
	return processOf(p), err
}

// agentOf is agent for a process, whose id may be malformed.
func (s *Service) agentOf(ctx context.Context, tenant, sandboxID, id string) (relay.Agent, error) {
	a, err := s.agent(ctx, tenant, sandboxID)
	if err == nil && !farm.ValidID(farm.ProcessPrefix, id) {
		err = noSuch("The sandbox has no process", id)
	}
	return a, err
}

// Process reads a process.
func (s *Service) Process(ctx context.Context, tenant, sandboxID, id string) (wire.Process, error) {
	return s.process(ctx, tenant, sandboxID, id, func(a relay.Agent) (farm.Process, error) { return a.Process(ctx, id) })
}

// EndProcess ends a process: by SIGTERM, and if it does not end within five seconds by SIGKILL. It is not listed any more then. id may be the pid
// of one that was started otherwise: it ends alone, and nothing is known of its end.
func (s *Service) EndProcess(ctx context.Context, tenant, sandboxID, id string) (wire.Process, error) {
	a, id, pid, err := s.named(ctx, tenant, sandboxID, id)
	switch {
	case err != nil:
		return wire.Process{}, err
	case id == "":
		return s.endRunning(ctx, a, pid)
	}
	p, err := a.EndProcess(ctx, id)
	return processOf(p), err
}

// named finds the process that a caller names, by its id or by its pid: its id, or the pid of one that callers did not start.
func (s *Service) named(ctx context.Context, tenant, sandboxID, name string) (a relay.Agent, id string, pid int, err error) {
	pid, err = strconv.Atoi(name)
	if err != nil || pid <= 0 {
		a, err = s.agentOf(ctx, tenant, sandboxID, name)
		return a, name, 0, err
	}
	if a, err = s.agent(ctx, tenant, sandboxID); err != nil {
		return a, "", 0, err
	}
	list, err := a.Processes(ctx)
	for _, p := range list {
		if p.PID == pid && p.State == farm.ProcessRunning {
			return a, p.ID, 0, err
		}
	}
	return a, "", pid, err
}

// one describes a process that callers did not start; ok is false if it does not run.
func one(ctx context.Context, a relay.Agent, pid int) (p wire.Process, ok bool, err error) {
	list, err := a.Running(ctx)
	for _, r := range list {
		if r.PID == pid {
			return wire.Process{PID: pid, State: string(farm.ProcessRunning), Command: r.Command, StartedAt: r.StartedAt, Restart: string(farm.RestartNever)}, true, err
		}
	}
	return wire.Process{}, false, err
}

// signalRunning sends a signal to one process that callers did not start.
func signalRunning(ctx context.Context, a relay.Agent, pid int, signal string) (wire.Process, error) {
	p, ok, err := one(ctx, a, pid)
	if err == nil && !ok {
		err = farm.NotFoundf("The sandbox has no process %d.", pid)
	}
	if err == nil {
		err = a.SignalRunning(ctx, pid, signal)
	}
	return p, err
}

// endLook is how often is looked whether a process has ended.
const endLook = 50 * time.Millisecond

// awaitEnd waits for the end of a process that callers did not start, for processGrace.
func awaitEnd(ctx context.Context, a relay.Agent, p wire.Process) (ended bool, err error) {
	over := time.After(processGrace)
	for {
		now, ok, err := one(ctx, a, p.PID)
		if err != nil || !ok || now.StartedAt.Sub(p.StartedAt) > time.Second { // another process may have the number
			return err == nil, err
		}
		select {
		case <-time.After(endLook):
		case <-over:
			return false, nil
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// endRunning is EndProcess for a process that callers did not start.
func (s *Service) endRunning(ctx context.Context, a relay.Agent, pid int) (wire.Process, error) {
	p, err := signalRunning(ctx, a, pid, "SIGTERM")
	if err != nil {
		return p, err
	}
	ended, err := awaitEnd(ctx, a, p)
	if err == nil && !ended {
		if err = a.SignalRunning(ctx, pid, "SIGKILL"); err == nil {
			ended, err = awaitEnd(ctx, a, p)
		}
		ended = ended || farm.CodeOf(err) == farm.CodeNotFound
	}
	switch {
	case ended:
		now := s.Now()
		p.State, p.EndedAt = string(farm.ProcessExited), &now
		return p, nil
	case err == nil:
		err = farm.Conflictf("The process does not end, although it was killed. Close the sandbox.")
	}
	return p, err
}

// SignalProcess sends a signal to a process and its group; to one that has a pid and was started otherwise, to it alone.
func (s *Service) SignalProcess(ctx context.Context, c Call, sandboxID, id string, r wire.SignalRequest) (wire.Process, error) {
	p := c.problems()
	_, err := farm.Signal(r.Signal)
	p.check("/signal", err)
	if err := p.err(); err != nil {
		return wire.Process{}, err
	}
	a, id, pid, err := s.named(ctx, c.Tenant, sandboxID, id)
	switch {
	case err != nil:
		return wire.Process{}, err
	case id == "":
		return signalRunning(ctx, a, pid, r.Signal)
	}
	done, err := a.SignalProcess(ctx, id, r.Signal)
	return processOf(done), err
}

// ResizeProcess sets the size of a process's terminal.
func (s *Service) ResizeProcess(ctx context.Context, c Call, sandboxID, id string, r wire.TerminalSize) (wire.Process, error) {
	p := c.problems()
	p.check("", checkSize(farm.TerminalSize(r)))
	if err := p.err(); err != nil {
		return wire.Process{}, err
	}
	return s.process(ctx, c.Tenant, sandboxID, id, func(a relay.Agent) (farm.Process, error) { return a.ResizeProcess(ctx, id, farm.TerminalSize(r)) })
}

// WriteProcess writes what in holds to the input of a process as it comes, and ends the input then if end says so.
func (s *Service) WriteProcess(ctx context.Context, tenant, sandboxID, id string, in io.Reader, end bool) (wire.Written, error) {
	a, err := s.agentOf(ctx, tenant, sandboxID, id)
	if err != nil {
		return wire.Written{}, err
	}
	n, err := a.WriteProcess(ctx, id, in, end)
	return wire.Written{Written: n}, err
}

func processOf(p farm.Process) wire.Process {
	out := wire.Process{
		ID: p.ID, PID: p.PID, Name: p.Name, State: string(p.State), Command: p.Command, Argv: p.Argv, Stdin: p.Stdin, StartedAt: p.StartedAt,
		Restart: cmp.Or(string(p.Restart), string(farm.RestartNever)), Restarts: p.Restarts,
		ExitCode: p.ExitCode, TimedOut: p.TimedOut, Stopped: p.Stopped, OutOfMemory: p.OutOfMemory,
	}
	if p.Terminal != nil {
		size := wire.TerminalSize(*p.Terminal)
		out.PTY = &size
	}
	if !p.EndedAt.IsZero() {
		out.EndedAt = &p.EndedAt
	}
	return out
}

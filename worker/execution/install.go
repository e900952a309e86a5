package execution

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/worker/retry"
)

const (
	// installOutput is how much of an installer's output is kept that runs before the job's own work.
	installOutput = 64 << 10
	// installAck is how much of it may lie in the agent: more would hold the installer back.
	installAck = 1 << 20
	// progressEvery keeps an installer from filling the job's events.
	progressEvery = 250 * time.Millisecond
)

// Executions that come before the job's own in its sandbox: their ids are the job's and one of these.
const (
	requestedSuffix = "-packages"
	importsSuffix   = "-imports"
)

// jobOf is the id of the job that an execution belongs to.
func jobOf(execution string) string {
	return strings.TrimSuffix(strings.TrimSuffix(execution, requestedSuffix), importsSuffix)
}

// Installed is what came of the packages that a job needs before its own work.
type Installed struct {
	packages       []farm.PackageOutcome
	notes          []string
	stdout, stderr *stream
}

// Result makes the record of it.
func (i *Installed) Result() *farm.Result {
	if i == nil {
		return nil
	}
	return &farm.Result{
		Install: &farm.InstallResult{
			Packages: i.packages, Stdout: i.stdout.text("of the job"), Stderr: i.stderr.text("of the job"),
			Truncated: farm.Truncated{Stdout: i.stdout.truncated(), Stderr: i.stderr.truncated()},
		},
		Notes: i.notes,
	}
}

// AddTo tells of it in the result of code, before what the result has already.
func (i *Installed) AddTo(r *farm.Result) {
	switch {
	case i == nil || r == nil:
		return
	case r.Execute != nil:
		r.Execute.Installed = append(slices.Clone(i.packages), r.Execute.Installed...)
	case r.Command != nil:
		r.Command.Installed = append(slices.Clone(i.packages), r.Command.Installed...)
	default:
		return
	}
	r.Notes = append(slices.Clone(i.notes), r.Notes...)
}

// InstallRequested installs the packages that came with a create or a run; nil when there are none. A worker that takes over
// finds what the one before has begun.
func (x *Runner) InstallRequested(ctx context.Context, t Task, sandbox *farm.Sandbox) (*Installed, error) {
	asked := t.Request.Install
	if asked == nil || len(asked.Packages) == 0 {
		return nil, nil //nolint:nilnil // nothing was asked for
	}
	x.Progress(ctx, t.Job.Ref(), "installing "+shorten(strings.Join(asked.Packages, ", "), 200))
	f := x.installer(t, sandbox, requestedSuffix, agent.Install{Manager: asked.Manager, Packages: asked.Packages})
	if err := f.follow(ctx); err != nil {
		return nil, err
	}
	return f.installed(reportAsked(asked, f.outcome, x.cfg.InstallTimeout)), nil
}

// installImports installs what a job's code or commands import; nil when that is not wanted.
func (x *Runner) installImports(ctx context.Context, t Task, sandbox *farm.Sandbox) (*Installed, error) {
	install := agent.Install{Manager: farm.ManagerPip, Auto: true, Only: x.cfg.AutoInstallAllow, Deny: x.cfg.AutoInstallDeny}
	switch e, c := t.Request.Execute, t.Request.Command; {
	case e != nil && e.AutoInstall && e.Language == "python":
		install.Code = e.Code
	case c != nil && c.AutoInstall && slices.ContainsFunc(c.Commands, mayBePython):
		install.Commands, install.Cwd = c.Commands, c.Cwd
	default:
		return nil, nil //nolint:nilnil // nothing was asked for
	}
	f := x.installer(t, sandbox, importsSuffix, install)
	if err := f.follow(ctx); err != nil {
		return nil, err
	}
	return f.installed(reportNeeded(f.outcome)), nil
}

// mayBePython reports whether a command can start a Python program: its name or that of its file says so.
func mayBePython(command string) bool { return strings.Contains(command, "py") }

// Progress tells those who follow a job. It is a courtesy: what cannot be told does not stop the job.
func (x *Runner) Progress(ctx context.Context, job farm.Ref, message string) {
	event := farm.Event{Name: farm.EventProgress, Progress: &farm.Progress{Message: message}}
	if err := x.store.AppendEvents(ctx, job, []farm.Event{event}); err != nil {
		x.log.DebugContext(ctx, "progress was not told", "job_id", job.ID, "error", err)
	}
}

// installer follows one install that comes before a job's own work.
type installer struct {
	x       *Runner
	task    Task
	sandbox *farm.Sandbox
	id      string // of the execution in the agent
	spec    agent.Spec

	next           uint64 // frame to read; 0: the first that the agent has
	unacked        int
	stdout, stderr *stream
	told           time.Time
	outcome        *agent.Outcome
}

func (x *Runner) installer(t Task, sandbox *farm.Sandbox, suffix string, install agent.Install) *installer {
	return &installer{
		x: x, task: t, sandbox: sandbox, id: t.Job.ID + suffix,
		spec:   agent.Spec{Kind: farm.KindInstall, Install: &install, Timeout: x.cfg.InstallTimeout, Grace: x.cfg.Grace},
		stdout: newStream(installOutput), stderr: newStream(installOutput),
	}
}

func (f *installer) installed(packages []farm.PackageOutcome) *Installed {
	notes := clipNotes(f.outcome.Notes)
	nameSandbox(f.sandbox.ID, packages, notes)
	return &Installed{packages: packages, notes: notes, stdout: f.stdout, stderr: f.stderr}
}

// follow starts the install, or attaches to it, and follows it to its end over streams that break.
func (f *installer) follow(ctx context.Context) error {
	ctx, done := context.WithTimeoutCause(ctx, f.spec.Timeout+f.spec.Grace+overrun, farm.Errorf(farm.CodeUnavailable, "The install did not end in time."))
	defer done()
	err := f.x.reattach(ctx, f.sandbox, f.task.Job.ID, func() (moved bool, err error) {
		before := f.next
		err = f.attach(ctx)
		return f.next > before, err
	})
	if err == nil && f.outcome.Canceled {
		return ErrCanceled
	}
	return err
}

// attach speaks to the agent until the install's end, or until the stream breaks.
func (f *installer) attach(ctx context.Context) error {
	c, err := f.x.node.Connect(ctx, f.sandbox)
	if err != nil {
		return err
	}
	if err := c.Start(ctx, f.id, f.spec); err != nil {
		return fmt.Errorf("start install: %w", err)
	}
	if f.next == 0 && f.task.Job.Attempt > 1 {
		if f.next, err = first(ctx, c, f.id); err != nil {
			return err
		}
	}
	frames, err := c.Frames(ctx, f.id, max(f.next, 1))
	if err != nil {
		return fmt.Errorf("read install: %w", err)
	}
	defer func() { _ = frames.Close() }()
	defer f.task.OnCancel(ctx, func() { _ = c.Stop(ctx, f.id, agent.StopCancel) })()
	for {
		frame, err := frames.Next()
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("%w: an install without an end", ErrProtocol)
		}
		if err != nil {
			return fmt.Errorf("read install: %w", err)
		}
		f.next = frame.Seq + 1
		if err := f.take(ctx, c, frame); err != nil || f.outcome != nil {
			return err
		}
	}
}

// first is the first frame that the agent still has of an execution.
func first(ctx context.Context, c *client.Client, id string) (uint64, error) {
	list, err := c.Executions(ctx)
	if err != nil {
		return 0, fmt.Errorf("list executions: %w", err)
	}
	for _, e := range list {
		if e.ID == id {
			return e.FirstSeq, nil
		}
	}
	return 0, nil
}

func (f *installer) take(ctx context.Context, c *client.Client, frame agent.Frame) error {
	switch frame.Type {
	case agent.FrameStdout:
		f.stdout.write(frame.Payload)
	case agent.FrameStderr:
		f.stderr.write(frame.Payload)
		if line := lastLine(frame.Payload); line != "" && time.Since(f.told) > progressEvery {
			f.told = time.Now()
			f.x.Progress(ctx, f.task.Job.Ref(), shorten(line, 200))
		}
	case agent.FrameFinal:
		outcome, err := readOutcome(frame.Payload)
		f.outcome = outcome
		return err
	default: // a newer agent may say more
	}
	if f.unacked += len(frame.Payload); f.unacked > installAck {
		f.unacked = 0
		return c.Ack(ctx, f.id, frame.Seq)
	}
	return nil
}

// ForgetInstalls lets the agent drop what only a takeover would have needed.
func (x *Runner) ForgetInstalls(ctx context.Context, job string, sandbox *farm.Sandbox) {
	ctx, done := context.WithTimeout(ctx, retry.CommitTimeout)
	defer done()
	c, err := x.node.Connect(ctx, sandbox)
	if err != nil {
		return // the agent drops old ones by itself as well
	}
	for _, suffix := range []string{requestedSuffix, importsSuffix} {
		_ = c.Forget(ctx, job+suffix)
	}
}

// lastLineBytes is how much of an output is looked at for its last line.
const lastLineBytes = 4 << 10

// lastLine is the last line of an installer's output that says something, without its drawing.
func lastLine(p []byte) string {
	p = p[max(0, len(p)-lastLineBytes):]
	lines := strings.FieldsFunc(string(p), func(r rune) bool { return r == '\n' || r == '\r' })
	for i := len(lines) - 1; i >= 0; i-- {
		line := strings.TrimSpace(strings.Map(func(r rune) rune {
			if r < ' ' || r == 0x7f || r == 0xfffd {
				return -1
			}
			return r
		}, strings.ToValidUTF8(lines[i], "")))
		if line != "" {
			return line
		}
	}
	return ""
}

func shorten(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

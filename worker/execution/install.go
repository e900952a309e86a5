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
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// installInline is how much of each stream of an installer is kept in the record when it runs before the job's own work.
	installInline = 64 << 10
	// progressEvery keeps an installer from filling the job's events.
	progressEvery = 250 * time.Millisecond
	// createArtifactsEvent numbers the events of a create's artifacts: far above progress, so that a takeover sends none twice.
	createArtifactsEvent = 1 << 20
	// maxInstallFrame is the largest frame of an install: output is sent in smaller ones, and the outcome names 100 packages at most.
	maxInstallFrame = 4 << 20
)

// Suffixes of executions that install packages before the job's own work. Their ids are the job's and one of these.
const (
	requestedSuffix = "-packages"
	importsSuffix   = "-imports"
)

// jobOf is the id of the job that an execution belongs to.
func jobOf(execution string) string {
	return strings.TrimSuffix(strings.TrimSuffix(execution, requestedSuffix), importsSuffix)
}

// Installed is the outcome of packages that were installed before a job's own work.
type Installed struct {
	output
	packages  []farm.PackageOutcome
	notes     []string
	artifacts []farm.Artifact // whole outputs
	stored    bool            // whether the artifacts hold all that streams leave out
	from      *installer
}

// Result makes the result of a create; nil when nothing was to be installed.
func (i *Installed) Result() *farm.Result {
	if i == nil {
		return nil
	}
	return &farm.Result{
		Install: &farm.InstallResult{
			Packages: i.packages, Stdout: i.text(i.stdout), Stderr: i.text(i.stderr),
			Truncated: i.truncated(), Dropped: i.dropped(),
		},
		Notes: i.notes, Artifacts: i.artifacts,
	}
}

func (i *Installed) text(s *sink) string {
	if i.stored {
		return s.text()
	}
	return s.stream.text("the whole output could not be stored")
}

// addTo adds the packages and notes to the result of code or commands, before those it has. Such a result has no output of the
// installer; if the output was long, a note names the artifact.
func (i *Installed) addTo(r *farm.Result) {
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
	notes := slices.Clone(i.notes)
	for _, a := range i.artifacts {
		notes = append(notes, "The installer printed a lot; all of it is the artifact "+a.Path+".")
	}
	r.Notes = append(notes, r.Notes...)
}

// InstallRequested installs the packages of a create or a run; nil when there are none. In a takeover it continues the install of the
// earlier attempt.
func (x *Runner) InstallRequested(ctx context.Context, t Task, sandbox *farm.Sandbox) (*Installed, error) {
	asked := t.Request.Install
	if asked == nil || len(asked.Packages) == 0 {
		return nil, nil // nothing to install
	}
	x.Progress(ctx, t.Job, "installing "+shorten(strings.Join(asked.Packages, ", "), 200))
	f := x.installer(t, sandbox, requestedSuffix, agent.Install{Manager: asked.Manager, Packages: asked.Packages})
	defer f.close()
	if err := f.follow(ctx); err != nil {
		return nil, err
	}
	installed, err := f.installed(ctx, reportRequested(asked, f.e.collect.outcome, x.cfg.InstallTimeout))
	if err == nil && t.Job.Kind == farm.KindCreate { // the artifacts of a run are recorded with those of its code
		err = x.record(ctx, t.Job, installed.artifacts, createArtifactsEvent)
	}
	return installed, err
}

// installImports installs what a job's code or commands import (auto_install); nil when the job does not ask for it.
func (x *Runner) installImports(ctx context.Context, t Task, sandbox *farm.Sandbox) (*Installed, error) {
	install := agent.Install{Manager: farm.ManagerPip, Auto: true, Only: x.cfg.AutoInstallAllow, Deny: x.cfg.AutoInstallDeny}
	switch e, c := t.Request.Execute, t.Request.Command; {
	case e != nil && e.AutoInstall && e.Language == "python":
		install.Code = e.Code
	case c != nil && c.AutoInstall && slices.ContainsFunc(c.Commands, mayBePython):
		install.Commands, install.Cwd = c.Commands, c.Cwd
	default:
		return nil, nil // nothing to install
	}
	f := x.installer(t, sandbox, importsSuffix, install)
	defer f.close()
	if err := f.follow(ctx); err != nil {
		return nil, err
	}
	f.spec.Install = nil // with the code, which need not be kept
	return f.installed(ctx, reportImports(f.e.collect.outcome))
}

// mayBePython reports whether a command can start a Python program: its name or that of its file says so.
func mayBePython(command string) bool { return strings.Contains(command, "py") }

// Progress sends a progress event to those who follow a job, unless another worker has the job by now. A failure is logged and does not stop the job.
func (x *Runner) Progress(ctx context.Context, job *farm.Job, message string) {
	event := farm.Event{Name: farm.EventProgress, Progress: &farm.Progress{Message: message}}
	if err := x.store.AppendEvents(ctx, job.Ref(), job.Attempt, []farm.Event{event}); err != nil {
		x.log.DebugContext(ctx, "progress event was not sent", "job_id", job.ID, "error", err)
	}
}

// installer runs one install before a job's own work.
type installer struct {
	x       *Runner
	task    Task
	sandbox *farm.Sandbox
	suffix  string
	id      string // of the execution in the agent
	spec    agent.Spec

	e          *execution
	progressed time.Time // when the last progress event was sent
}

func (x *Runner) installer(t Task, sandbox *farm.Sandbox, suffix string, install agent.Install) *installer {
	return &installer{
		x: x, task: t, sandbox: sandbox, suffix: suffix, id: t.Job.ID + suffix,
		spec: agent.Spec{
			Kind: farm.KindInstall, Install: &install, Timeout: x.cfg.InstallTimeout, Grace: x.cfg.Grace, MaxOutput: maxOutput(x.cfg.Limits),
		},
		e: &execution{job: t.Job, request: &farm.Request{}, sandbox: sandbox},
	}
}

// installed returns the outcome of an install that has ended, after it has uploaded the whole of each cut stream.
func (f *installer) installed(ctx context.Context, packages []farm.PackageOutcome) (*Installed, error) {
	notes := f.e.collect.outcome.Notes
	nameSandbox(f.sandbox.ID, packages, notes)
	out := f.e.collect.outputs[0]
	i := &Installed{packages: packages, notes: notes, output: *out, stored: true, from: f}
	for _, s := range out.both() {
		if !s.truncated() {
			continue
		}
		err := f.x.storeOutput(ctx, f.e, s)
		if err == nil && !s.lost { // at once, so that the artifact is recorded even if the job fails later
			err = f.x.retry(ctx, func(ctx context.Context) error {
				return f.x.store.AddArtifacts(ctx, f.task.Job.Attempt, []farm.Artifact{*s.artifact})
			})
		}
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err != nil: // the packages are installed: the job does not fail for their output
			f.x.log.ErrorContext(ctx, "output of an install was not stored", "job_id", f.task.Job.ID, "error", err)
			i.stored = false
		case s.lost: // a note says so
			i.stored = false
		default:
			i.artifacts = append(i.artifacts, *s.artifact)
		}
	}
	f.e.collect.noteLost()
	i.notes = append(i.notes, f.e.collect.notes...)
	return i, nil
}

// follow starts the install, or attaches to it, and follows it to its end.
func (f *installer) follow(ctx context.Context) error {
	limits := f.x.cfg.Limits
	limits.MaxStreamInline, limits.MaxResultInline = installInline, 2*installInline
	f.x.collect(f.e, limits, 0)
	f.e.collect.quiet = true
	for _, s := range f.e.collect.current() {
		s.path = farm.OutputDir + f.suffix[1:] + "-" + string(s.name) + ".txt"
	}
	err := f.x.resume(ctx, f.e, f.suffix, f.suffix == importsSuffix && f.task.Request.Install != nil)
	if err != nil {
		return err
	}
	ctx, d, stop := withDeadline(ctx, f.spec.Timeout+f.spec.Grace+overrun, farm.Errorf(farm.CodeUnavailable, "The install did not end in time."))
	defer stop()
	f.e.deadline = d
	err = f.x.reattach(ctx, f.sandbox, f.task.Job.ID, func() (moved bool, err error) {
		before := f.e.collect.seq
		err = f.attach(ctx)
		return f.e.collect.seq > before, err
	})
	if err == nil && f.e.collect.outcome.Canceled {
		return ErrCanceled
	}
	return err
}

// close gives back what the install holds for uploads.
func (f *installer) close() { f.e.collect.close() }

// attach reads frames until the final one, or until the connection breaks.
func (f *installer) attach(ctx context.Context) error {
	c, err := f.x.node.Connect(ctx, f.sandbox)
	if err != nil {
		return err
	}
	frames, err := f.e.run(ctx, c, f.id, f.spec)
	if err != nil {
		return fmt.Errorf("start install: %w", err)
	}
	defer func() { _ = frames.Close() }()
	if err := f.e.staged.ack(ctx, c, f.id); err != nil {
		return err
	}
	defer f.task.OnCancel(ctx, func() { _ = c.Stop(ctx, f.id, agent.StopCancel) })()
	for {
		err := f.next(ctx, c, frames)
		if err != nil || f.e.collect.outcome != nil {
			return err
		}
	}
}

// next reads the next frame and takes it. One larger than ordinary output is charged before it is read, and one that no install has is refused.
func (f *installer) next(ctx context.Context, c *client.Client, frames frameSource) error {
	var hold *budget.Hold
	defer func() { hold.Release() }()
	frame, err := frames.NextAdmitted(func(bytes int) (err error) {
		switch {
		case bytes > maxInstallFrame:
			return fmt.Errorf("%w: an install with a frame of %d bytes", ErrProtocol, bytes)
		case bytes > budget.SmallBytes:
			hold, err = f.x.memory.Acquire(ctx, f.e.job.Tenant, int64(bytes)*valueWeight)
		}
		return err
	})
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: an install without an end", ErrProtocol)
	}
	if err != nil {
		return fmt.Errorf("read install: %w", err)
	}
	f.e.deadline.pause()
	defer f.e.deadline.resume()
	return f.take(ctx, c, frame)
}

// take handles a frame from the agent.
func (f *installer) take(ctx context.Context, c *client.Client, frame agent.Frame) error {
	defer f.x.turn(ctx, f.e, max(len(frame.Payload), frameBytes))()
	due, err := f.x.absorb(ctx, f.e, frame)
	if err != nil {
		return err
	}
	if frame.Type == agent.FrameStderr && time.Since(f.progressed) > progressEvery {
		if line := lastLine(frame.Payload); strings.HasPrefix(line, agent.Installing) {
			f.progressed = time.Now()
			f.x.Progress(ctx, f.task.Job, shorten(line, 200))
		}
	}
	if due && frame.Type != agent.FrameFinal {
		return f.x.orLater(ctx, f.e, f.x.acknowledge(ctx, f.e, c, f.id))
	}
	return nil
}

// Outcome is that of a create which installed packages; nil: none.
func (i *Installed) Outcome() Outcome {
	v := Outcome{State: farm.JobCompleted, Result: i.Result()}
	if i != nil {
		v.Forget, v.Cleanup = []string{i.from.id}, i.from.x.dropOf(i.from.e)
	}
	return v
}

// lastLineBytes is how much of an output is searched for its last line.
const lastLineBytes = 4 << 10

// lastLine is the last line of an installer's output that is not empty, without control characters.
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

func shorten(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}

package execution

import (
	"fmt"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// result builds the result of the frames so far.
func (c *collector) result() *farm.Result {
	r := &farm.Result{}
	if c.outcome != nil {
		r.ArtifactsSkipped = max(c.outcome.Skipped, 0) + len(c.skipped)
		c.noteGone()
		c.noteLeftOut()
	}
	switch {
	case c.request.Command != nil:
		r.Command = c.commandResult()
	case c.job.Kind == farm.KindInstall:
		r.Install = c.installResult()
	default:
		r.Execute = c.executeResult()
	}
	c.noteDropped()
	c.noteLost()
	r.Notes = c.notes // last: the results may have added some
	return r
}

// noteGone notes what the agent no longer had when this attempt asked for it.
func (c *collector) noteGone() {
	switch gone := c.outcome.OutputGone; {
	case gone && c.missing:
		c.note("The output of this job is lost: the sandbox only remembers how the code ended. It ran once; files that it changed are still in the workspace.")
		if command := c.request.Command; command != nil {
			if len(command.Commands) == 1 || c.outcome.ExitCode == 0 && c.state() == farm.JobCompleted {
				c.fill(len(command.Commands), 0) // the exit code is that of each
			} else if len(c.marks) == 0 {
				c.outputs = nil // which of them ran is not known
			}
		}
	case gone:
		c.note("The sandbox no longer knows which files this job changed, so none became artifacts. They are still in the workspace.")
	case c.missing:
		c.note("A part of the output is missing: the records of this job were lost, and the sandbox no longer had that part when the job was continued.")
	}
}

// noteLeftOut notes the changed files that are no artifacts because of the folders that they are in.
func (c *collector) noteLeftOut() {
	total, folders := 0, []string{}
	for _, left := range c.outcome.LeftOut[:min(len(c.outcome.LeftOut), agent.MaxLeftOut+1)] {
		folder := clip(left.Folder, 100)
		if folder == "" {
			folder = "other such folders"
		}
		total += max(left.Files, 0)
		folders = append(folders, fmt.Sprintf("%d in %s", max(left.Files, 0), folder))
	}
	if total > 0 {
		c.note("Files in folders of installed, derived or cached files do not become artifacts: %s. They are in the workspace.", strings.Join(folders, ", "))
	}
}

func (c *collector) executeResult() *farm.ExecuteResult {
	out := c.outputs[0]
	e := &farm.ExecuteResult{
		Stdout: out.stdout.text(), Stderr: out.stderr.text(),
		Truncated: out.truncated(), Dropped: out.dropped(),
		Rich: c.rich,
	}
	if o := c.outcome; o != nil {
		e.ExitCode, e.ExecutionCount = o.ExitCode, o.ExecutionCount
		e.Restarted, e.FreshProcess = o.Restarted, o.FreshProcess
		e.Error = clipError(o.Error)
		if o.StoppedAtMaxOutput {
			e.Error = &farm.CodeError{Name: farm.ErrorOutputLimit, Value: outputLimitSentence("The code was", c.limits), Traceback: []string{}}
		}
		if o.FreshProcess && c.job.Kind != farm.KindRun { // of a run, no variables could be kept
			c.note("This image has no kernel for the language: the code ran in a process of its own, and variables are not kept.")
		}
	}
	return e
}

func (c *collector) installResult() *farm.InstallResult {
	out := c.outputs[0]
	r := &farm.InstallResult{
		Stdout: out.stdout.text(), Stderr: out.stderr.text(),
		Truncated: out.truncated(), Dropped: out.dropped(),
	}
	if c.outcome != nil {
		r.Packages = reportRequested(c.request.Install, c.outcome, time.Duration(c.job.TimeoutSeconds)*time.Second)
		notes := clipNotes(c.outcome.Notes)
		nameSandbox(c.job.SandboxID, r.Packages, notes)
		c.notes = append(c.notes, notes...)
	}
	return r
}

func (c *collector) commandResult() *farm.CommandResult {
	r := &farm.CommandResult{Commands: []farm.CommandOutcome{}}
	for i, out := range c.outputs {
		o := farm.CommandOutcome{
			Command: c.request.Command.Commands[i],
			Stdout:  out.stdout.text(), Stderr: out.stderr.text(),
			Truncated: out.truncated(), Dropped: out.dropped(),
			ExitCode: -1,
		}
		if i < len(c.marks) {
			o.ExitCode, o.DurationMS = c.marks[i].ExitCode, c.marks[i].DurationMS
		} else if c.outcome != nil {
			o.ExitCode = c.outcome.ExitCode
		}
		r.Commands = append(r.Commands, o)
	}
	if o := c.outcome; o != nil && o.StoppedAtMaxOutput {
		c.note("%s", outputLimitSentence("The commands were", c.limits))
	} else if o != nil && o.OutOfMemory && o.Error != nil {
		c.note("%s", clip(o.Error.Value, farm.MaxErrorValueBytes))
	}
	return r
}

// state says how the job ended.
func (c *collector) state() farm.JobState {
	switch {
	case c.outcome.TimedOut:
		return farm.JobTimedOut
	case c.outcome.Canceled:
		return farm.JobCanceled
	default:
		return farm.JobCompleted
	}
}

func clipError(e *farm.CodeError) *farm.CodeError {
	if e == nil {
		return nil
	}
	trace := e.Traceback
	if len(trace) > maxTraceLines {
		trace = append(append([]string{}, trace[:maxTraceLines/2]...), trace[len(trace)-maxTraceLines/2:]...)
	}
	clipped := &farm.CodeError{Name: clip(e.Name, maxErrorName), Value: clip(e.Value, farm.MaxErrorValueBytes), Traceback: []string{}}
	left := maxTraceText
	for _, line := range trace {
		line = clip(line, min(left, maxErrorLine))
		left = max(left-len(line), 0)
		clipped.Traceback = append(clipped.Traceback, line)
	}
	return clipped
}

func clip(s string, limit int) string {
	if len(s) > limit {
		s = s[:limit] + " …"
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

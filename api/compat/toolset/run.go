package toolset

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sandfarm/sandfarm/api/wire"
)

// Run is what came of code, as a process would have left it.
type Run struct {
	Stdout, Stderr string
	ExitCode       int
	Files          []wire.Artifact // new or changed, of this run alone
	Error          string          // why it did not come to its end; empty: it did
}

// Code is what a caller wants to run. An empty program does nothing, and does it well.
func Code(text string) string {
	if text == "" {
		return "pass"
	}
	return text
}

// RunOf reads the job of an execution. The traceback of an exception stands at the end of stderr, where a process puts it.
func RunOf(job *wire.Job) Run {
	var out Run
	if job.Result != nil && job.Result.Execute != nil {
		e := job.Result.Execute
		out = Run{Stdout: e.Stdout, Stderr: e.Stderr, ExitCode: e.ExitCode, Files: e.Artifacts}
		if e.Error != nil {
			out.Stderr = lined(out.Stderr) + trace(e.Error)
		}
	}
	if why := Unfinished(job); why != "" {
		out.Error = why
		out.Stderr = lined(out.Stderr) + why + "\n"
		if out.ExitCode == 0 {
			out.ExitCode = 1
		}
	}
	return out
}

// Unfinished says in a sentence why a job has not completed; empty where it has.
func Unfinished(job *wire.Job) string {
	switch {
	case job.State == "completed":
		return ""
	case job.Error != nil && job.Error.Message != "":
		return job.Error.Message
	case job.Final():
		return "The work ended early: it was " + strings.ReplaceAll(job.State, "_", " ") + "."
	default:
		return "The work goes on."
	}
}

// Whole is the link to the whole of a stream of which an answer only holds head and tail; empty where it holds all. Of
// the command at a position, counted from 1, or of code, whose position is 0.
func Whole(artifacts []wire.Artifact, position int, stream string, truncated bool) string {
	name := ".output/" + stream + ".txt"
	if position > 0 {
		name = fmt.Sprintf(".output/%d-%s.txt", position, stream)
	}
	if at := slices.IndexFunc(artifacts, func(a wire.Artifact) bool { return a.Path == name }); truncated && at >= 0 {
		return artifacts[at].URL
	}
	return ""
}

func trace(e *wire.CodeError) string {
	text := strings.Join(e.Traceback, "\n")
	if last := e.Name + ": " + e.Value; !strings.Contains(text, e.Name) {
		text = lined(text) + last
	}
	return lined(text)
}

// lined ends a text with a line's end, where there is one.
func lined(s string) string {
	if s == "" || strings.HasSuffix(s, "\n") {
		return s
	}
	return s + "\n"
}

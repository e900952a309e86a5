package toolset

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Run is the outcome of code, in the form of a process.
type Run struct {
	Stdout, Stderr string
	ExitCode       int
	Files          []wire.Artifact // new or changed, of this run alone
	Error          string          // why the job did not complete; empty: it did
}

// Code is the code to run. An empty program is one that does nothing.
func Code(text string) string {
	if text == "" {
		return "pass"
	}
	return text
}

// RunOf reads the job of an execution. Stderr ends with the traceback of an exception, as it does for a process.
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

// Unfinished is a sentence that says why a job did not complete, empty if it did.
func Unfinished(job *wire.Job) string {
	switch {
	case job.State == "completed":
		return ""
	case job.Error != nil && job.Error.Message != "":
		return job.Error.Message
	case job.Final():
		return "The work ended early: it was " + strings.ReplaceAll(job.State, "_", " ") + "."
	default:
		return "The job continues."
	}
}

// Whole is the link to a whole stream whose answer has only head and tail; it is empty if the answer has everything. Position is the
// command's, from 1; code has position 0.
func Whole(artifacts []wire.Artifact, position int, stream string, truncated bool) string {
	name := farm.OutputDir + stream + ".txt"
	if position > 0 {
		name = fmt.Sprintf("%s%d-%s.txt", farm.OutputDir, position, stream)
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

// lined ends a text that is not empty with a line break.
func lined(s string) string {
	if s == "" || strings.HasSuffix(s, "\n") {
		return s
	}
	return s + "\n"
}

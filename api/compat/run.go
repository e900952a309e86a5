package compat

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// codeRun is the outcome of code, in the form of a process.
type codeRun struct {
	Stdout, Stderr string
	ExitCode       int
	Files          []wire.Artifact // new or changed, of this run alone
	Error          string          // why the job did not complete; empty: it did
}

// codeOrPass is the code to run. An empty program is one that does nothing.
func codeOrPass(text string) string {
	if text == "" {
		return "pass"
	}
	return text
}

// runOf reads the job of an execution. Stderr ends with the traceback of an exception, as it does for a process.
func runOf(job *wire.Job) codeRun {
	var out codeRun
	if job.Result != nil && job.Result.Execute != nil {
		e := job.Result.Execute
		out = codeRun{Stdout: e.Stdout, Stderr: e.Stderr, ExitCode: e.ExitCode, Files: e.Artifacts}
		if e.Error != nil {
			out.Stderr = lined(out.Stderr) + traceOf(e.Error)
		}
	}
	if why := unfinished(job); why != "" {
		out.Error = why
		out.Stderr = lined(out.Stderr) + why + "\n"
		if out.ExitCode == 0 {
			out.ExitCode = 1
		}
	}
	return out
}

// unfinished is a sentence that says why a job did not complete, empty if it did.
func unfinished(job *wire.Job) string {
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

// wholeStream is the link to a whole stream whose answer has only head and tail; it is empty if the answer has everything. Position is the
// command's, from 1; code has position 0.
func wholeStream(artifacts []wire.Artifact, position int, stream string, truncated bool) string {
	name := farm.OutputDir + stream + ".txt"
	if position > 0 {
		name = fmt.Sprintf("%s%d-%s.txt", farm.OutputDir, position, stream)
	}
	if at := slices.IndexFunc(artifacts, func(a wire.Artifact) bool { return a.Path == name }); truncated && at >= 0 {
		return artifacts[at].URL
	}
	return ""
}

func traceOf(e *wire.CodeError) string {
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

// Results is the name of the workspace in older systems. Every image has a link of this name.
const Results = "/app/results"

// InResults checks a path that is relative to the workspace, or absolute with either of its names, and returns it relative; "." is
// the workspace itself. Any other path is invalid.
func InResults(name string) (string, error) {
	rest, ok := strings.CutPrefix(name, Results)
	if ok && (rest == "" || rest[0] == '/') {
		name = strings.TrimLeft(rest, "/")
	} else if strings.HasPrefix(name, "/") && name != farm.Workspace && !strings.HasPrefix(name, farm.Workspace+"/") {
		return "", farm.Invalidf("The path %q is not in %s, where all files are.", farm.Shorten(name), Results)
	}
	clean, err := farm.CleanPath(name)
	if err != nil {
		return "", err
	}
	return clean, nil
}

// lexical resolves ".." in a path that stays inside its starting directory. It returns a path that leads out unchanged, for the caller
// to refuse.
func lexical(p string) string {
	if !strings.Contains(p, "..") {
		return p
	}
	clean := path.Clean(p)
	if clean == ".." || strings.HasPrefix(clean, "../") {
		return p
	}
	if strings.HasSuffix(p, "/") {
		return clean + "/"
	}
	return clean
}

// hasPackage reports whether a package is installed as requested. It is false if one version is requested and another is installed.
func hasPackage(p wire.Package, wanted string) bool {
	return mcp.IsInstalled(p) && fitsVersion(p.Version, wanted)
}

// fitsVersion is false for a requirement of one version, such as numpy==2.0, if another version is installed.
func fitsVersion(version, wanted string) bool {
	_, pinned, ok := strings.Cut(wanted, "==")
	if !ok || version == "" || strings.ContainsAny(pinned, "=*,<>!~") {
		return true
	}
	if !strings.Contains(pinned, "+") {
		version, _, _ = strings.Cut(version, "+") // a build of that version
	}
	return plainVersion(pinned) == plainVersion(version)
}

// plainVersion is a version in a form that can be compared.
func plainVersion(version string) string {
	version = strings.TrimPrefix(strings.ToLower(strings.TrimSpace(version)), "v")
	for strings.HasSuffix(version, ".0") {
		version = strings.TrimSuffix(version, ".0")
	}
	return version
}

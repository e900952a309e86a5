package execution

import (
	"encoding/json"
	"fmt"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// Bounds of what is left of a result that cannot be stored whole.
const (
	abridgedStream  = 2 << 10 // bytes of each of stdout and stderr
	abridgedText    = 512     // bytes of other texts
	abridgedEntries = 20      // commands, packages and artifacts
)

const (
	whyAbridged = "the object store does not answer"
	// abridgedNote tells the caller what is missing.
	abridgedNote = "The result was too long for the job's record and the object store did not answer, so only the beginning and the end of the output are here, " +
		"without displayed values. List the job's artifacts to see which files were stored."
)

// Abridged is what of a result fits into the job's record without the object store.
func Abridged(r *farm.Result) *farm.Result {
	short := &farm.Result{ArtifactsSkipped: r.ArtifactsSkipped, Notes: []string{abridgedNote}}
	if e := r.Execute; e != nil {
		cut := *e
		cut.Stdout, cut.Stderr = abridgedOutput(e.Stdout), abridgedOutput(e.Stderr)
		cut.Truncated = farm.Truncated{Stdout: len(cut.Stdout) < len(e.Stdout) || e.Truncated.Stdout, Stderr: len(cut.Stderr) < len(e.Stderr) || e.Truncated.Stderr}
		cut.Rich, cut.Installed = nil, nil
		if e.Error != nil {
			cut.Error = &farm.CodeError{Name: e.Error.Name, Value: clip(e.Error.Value, abridgedText), Traceback: []string{}}
		}
		short.Execute = &cut
	}
	if c := r.Command; c != nil {
		short.Command = &farm.CommandResult{Commands: []farm.CommandOutcome{}}
		for _, o := range c.Commands[:min(len(c.Commands), abridgedEntries)] {
			short.Command.Commands = append(short.Command.Commands, farm.CommandOutcome{
				Command: clip(o.Command, abridgedText), Truncated: farm.Truncated{Stdout: o.Stdout != "", Stderr: o.Stderr != ""}, Dropped: o.Dropped,
				ExitCode: o.ExitCode, DurationMS: o.DurationMS,
			})
		}
	}
	if i := r.Install; i != nil {
		short.Install = &farm.InstallResult{Packages: []farm.PackageOutcome{}, Truncated: farm.Truncated{Stdout: true, Stderr: true}}
		for _, p := range i.Packages[:min(len(i.Packages), abridgedEntries)] {
			p.Message, p.Why = clip(p.Message, abridgedText), ""
			short.Install.Packages = append(short.Install.Packages, p)
		}
	}
	if data, err := json.Marshal(short); err != nil || len(data) > store.InlineBytes {
		return &farm.Result{Notes: []string{abridgedNote}}
	}
	return short
}

// abridgedOutput is the beginning and the end of a stream.
func abridgedOutput(text string) string {
	s := newStream(abridgedStream)
	s.write([]byte(text))
	return s.text(whyAbridged)
}

// AbridgedError is the error of a job whose result could not be stored whole.
func AbridgedError() *farm.JobError {
	return &farm.JobError{Code: farm.CodeUnavailable, Message: fmt.Sprintf("The work was done, but its result could not be stored: %s. What fits into the record is in the result.", whyAbridged)}
}

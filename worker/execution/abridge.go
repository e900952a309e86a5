package execution

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// Bounds of what is left of a result that cannot be stored whole.
const (
	abridgedMost    = 12 << 10 // bytes of each of stdout and stderr, and of those of all commands together; less if that is still too long
	abridgedText    = 512      // bytes of other texts
	abridgedEntries = 20       // commands, packages and artifacts
)

// Abridgement says why a result is not stored whole.
type Abridgement string

// Reasons for an Abridgement.
const (
	NoAnswer    Abridgement = "the object store does not answer"
	StoreFull   Abridgement = "the object store is full"
	StorageFull Abridgement = "the storage of your tenant is full (quota max_stored_mb)"
)

// note tells the caller what is missing.
func (why Abridgement) note() string {
	return fmt.Sprintf("The result is longer than the job's record and was not stored whole: %s. Only the beginning and the end of the output are here, without displayed values. "+
		"List the job's artifacts to see which files were stored.", string(why))
}

// Abridged is what of a result fits into the job's record without the object store.
func Abridged(r *farm.Result, why Abridgement) *farm.Result {
	for most := abridgedMost; most >= 16; most /= 4 {
		short := abridged(r, why, most)
		if data, err := json.Marshal(short); err == nil && len(data) <= store.InlineBytes {
			return short
		}
	}
	return &farm.Result{Notes: []string{why.note()}}
}

func abridged(r *farm.Result, why Abridgement, most int) *farm.Result {
	short := &farm.Result{ArtifactsSkipped: r.ArtifactsSkipped, Notes: []string{why.note()}}
	for _, note := range r.Notes[:min(len(r.Notes), abridgedEntries)] {
		short.Notes = append(short.Notes, clip(note, abridgedText))
	}
	if e := r.Execute; e != nil {
		cut := *e
		cut.Stdout, cut.Truncated.Stdout = why.cut(e.Stdout, most, e.Truncated.Stdout)
		cut.Stderr, cut.Truncated.Stderr = why.cut(e.Stderr, most, e.Truncated.Stderr)
		cut.Rich, cut.Installed = nil, nil
		if e.Error != nil {
			cut.Error = &farm.CodeError{Name: e.Error.Name, Value: clip(e.Error.Value, abridgedText), Traceback: []string{}}
		}
		short.Execute = &cut
	}
	if c := r.Command; c != nil {
		short.Command = &farm.CommandResult{Commands: []farm.CommandOutcome{}}
		list := c.Commands[:min(len(c.Commands), abridgedEntries)]
		for _, o := range list {
			cut := o
			cut.Command = clip(o.Command, abridgedText)
			cut.Stdout, cut.Truncated.Stdout = why.cut(o.Stdout, most/len(list), o.Truncated.Stdout)
			cut.Stderr, cut.Truncated.Stderr = why.cut(o.Stderr, most/len(list), o.Truncated.Stderr)
			short.Command.Commands = append(short.Command.Commands, cut)
		}
	}
	if i := r.Install; i != nil {
		short.Install = &farm.InstallResult{Packages: []farm.PackageOutcome{}, Truncated: farm.Truncated{Stdout: true, Stderr: true}}
		for _, p := range i.Packages[:min(len(i.Packages), abridgedEntries)] {
			p.Message, p.Why = clip(p.Message, abridgedText), ""
			short.Install.Packages = append(short.Install.Packages, p)
		}
	}
	return short
}

// cut is the beginning and the end of a stream. before: it is cut already.
func (why Abridgement) cut(text string, most int, before bool) (short string, truncated bool) {
	s := newStream(most)
	s.write([]byte(text))
	return s.text(string(why)), before || s.truncated()
}

// unstored is the reason for which the object store did not take something.
func unstored(err error) Abridgement {
	if errors.Is(err, blob.ErrFull) {
		return StoreFull
	}
	return NoAnswer
}

// AbridgedError is the error of a job whose result could not be stored whole since the object store failed.
func AbridgedError(why Abridgement) *farm.JobError {
	return &farm.JobError{Code: farm.CodeUnavailable, Message: fmt.Sprintf("The work was done, but its result could not be stored: %s. What fits into the record is in the result.", why)}
}

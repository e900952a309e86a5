package execution

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// result builds the result of the frames so far.
func (c *collector) result() *farm.Result {
	r := &farm.Result{}
	if c.outcome != nil {
		r.ArtifactsSkipped = c.outcome.Skipped + len(c.skipped)
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
	for _, left := range c.outcome.LeftOut {
		total += left.Files
		folders = append(folders, fmt.Sprintf("%d in %s", left.Files, cmp.Or(left.Folder, "other such folders")))
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
		e.Error = o.Error
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
		notes := c.outcome.Notes
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
		c.note("%s", o.Error.Value)
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

// readOutcome reads how an execution ended. The agent is not trusted: ErrProtocol refuses what none says, and what is more than an agent reports
// is cut here: the outcome stays in memory until the job ends. Its files, error and report of packages are charged when its frame no longer is
// (chargeArtifacts).
func readOutcome(payload []byte, limits farm.Limits) (*agent.Outcome, error) {
	var read struct {
		agent.Outcome
		Install reports `json:"install"`
	}
	if budget.Values(payload) > maxFrameValues {
		return nil, fmt.Errorf("%w: an outcome of more than %d values", ErrProtocol, maxFrameValues)
	}
	err := json.Unmarshal(payload, &read)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	o := read.Outcome
	found := len(o.Files)
	o.Files, err = changedFiles(o.Files, limits)
	o.Skipped = count(o.Skipped) + found - len(o.Files)
	o.Error = clipError(o.Error)
	o.Notes = bounded(o.Notes, maxInstallNotes, func(note string) string { return plain(note, maxPackageNote) })
	o.Install = read.Install
	o.LeftOut = bounded(o.LeftOut, agent.MaxLeftOut+1, func(l agent.LeftOut) agent.LeftOut {
		return agent.LeftOut{Folder: noted(l.Folder, 100), Files: count(l.Files)}
	})
	return &o, err
}

// reports are what an outcome says of packages, checked: the first ones, maxReported at most. An empty one takes a hundred bytes in memory, so the others
// are not decoded.
type reports []farm.PackageOutcome

// UnmarshalJSON decodes the list.
func (r *reports) UnmarshalJSON(text []byte) error {
	if !bytes.HasPrefix(text, []byte("[")) {
		return json.Unmarshal(text, (*[]farm.PackageOutcome)(r))
	}
	d := json.NewDecoder(bytes.NewReader(text))
	_, err := d.Token()
	for err == nil && d.More() && len(*r) < maxReported {
		var p farm.PackageOutcome
		err = d.Decode(&p)
		*r = append(*r, checked(p))
	}
	return err
}

// bounded is a copy of the first values of a list, at most n, each as check returns it.
func bounded[V any](list []V, n int, check func(V) V) []V {
	out := make([]V, 0, min(len(list), n))
	for _, v := range list[:cap(out)] {
		out = append(out, check(v))
	}
	return out
}

// count is a number that an agent reports, such as of files.
func count(n int) int { return min(max(n, 0), math.MaxInt32) }

// changedFiles are the files of an outcome that can be artifacts: those within the limits, whose paths are not those of outputs. Each has the path
// that calls use, is there once, and has a size.
func changedFiles(found []agent.ChangedFile, limits farm.Limits) ([]agent.ChangedFile, error) {
	files, known, bytes := []agent.ChangedFile{}, map[string]bool{}, 0
	for _, f := range found {
		clean, err := farm.CleanFilePath(f.Path)
		if err != nil || clean != f.Path || f.Size < 0 || known[f.Path] {
			return nil, fmt.Errorf("%w: changed file %q of %d bytes", ErrProtocol, clip(f.Path, 256), f.Size)
		}
		known[f.Path] = true
		quoted := farm.Quoted(f.Path)
		if strings.HasPrefix(f.Path, farm.OutputDir) || f.Size > limits.MaxArtifactBytes || len(files) == limits.MaxArtifacts || bytes+quoted > agent.MaxPathsBytes {
			continue
		}
		bytes += quoted
		files = append(files, f)
	}
	return files, nil
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

// Commit ends a job with finish. A result that is too long for Redis and that the object store does not take is committed abridged: if it does not
// answer, the job fails; if the storage of the tenant is full, the job ends as it did, unless the result was all that was asked for. f
// becomes what was committed.
func Commit(f *store.Finish, finish func(store.Finish) error) error {
	err := finish(*f)
	switch {
	case err == nil || f.Result == nil:
		return err
	case errors.Is(err, blob.ErrNoAnswer):
		why := unstored(err)
		f.Result = Abridged(f.Result, why)
		if f.State == farm.JobCompleted {
			f.State, f.Error = farm.JobFailed, AbridgedError(why)
		}
	case farm.CodeOf(err) == farm.CodeExhausted:
		if f.Result.File != nil || f.Result.Packages != nil {
			f.State, f.Error = farm.JobFailed, &farm.JobError{Code: farm.CodeExhausted, Message: farm.MessageOf(err)}
		}
		f.Result = Abridged(f.Result, StorageFull)
	default:
		return err
	}
	return finish(*f)
}

// Bounds of what is left of a result that cannot be stored whole.
const (
	maxAbridged     = 12 << 10 // bytes of each of stdout and stderr, and of those of all commands together; less if that is still too long
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
	for limit := maxAbridged; limit >= 16; limit /= 4 {
		short := abridged(r, why, limit)
		if data, err := farm.Encode(short); err == nil && len(data) <= store.InlineBytes {
			return short
		}
	}
	return &farm.Result{Notes: []string{why.note()}}
}

func abridged(r *farm.Result, why Abridgement, limit int) *farm.Result {
	short := &farm.Result{ArtifactsSkipped: r.ArtifactsSkipped, Notes: []string{why.note()}}
	for _, note := range r.Notes[:min(len(r.Notes), abridgedEntries)] {
		short.Notes = append(short.Notes, clip(note, abridgedText))
	}
	if e := r.Execute; e != nil {
		cut := *e
		cut.Stdout, cut.Truncated.Stdout = why.cut(e.Stdout, limit, e.Truncated.Stdout)
		cut.Stderr, cut.Truncated.Stderr = why.cut(e.Stderr, limit, e.Truncated.Stderr)
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
			cut.Stdout, cut.Truncated.Stdout = why.cut(o.Stdout, limit/len(list), o.Truncated.Stdout)
			cut.Stderr, cut.Truncated.Stderr = why.cut(o.Stderr, limit/len(list), o.Truncated.Stderr)
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
func (why Abridgement) cut(text string, limit int, before bool) (short string, truncated bool) {
	s := newStream(limit)
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

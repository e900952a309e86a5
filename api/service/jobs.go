package service

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

func noJob(id string) error { return noSuch("There is no job", id) }

// noSuch is the error for a text that is not the id that the sentence is about. It says what else the id is of.
func noSuch(sentence, id string) error {
	kind := ""
	for prefix, what := range map[string]string{farm.SandboxPrefix: "a sandbox", farm.JobPrefix: "a job", farm.ArtifactPrefix: "an artifact", farm.ProcessPrefix: "a process"} {
		if farm.ValidID(prefix, id) {
			kind = ": this is the id of " + what
		}
	}
	return farm.NotFoundf("%s %q%s.", sentence, farm.Shorten(id), kind)
}

// Job reads a job. With a wait it returns when the job ends or the time is up.
func (s *Service) Job(ctx context.Context, tenant, id string, wait time.Duration) (Outcome, error) {
	if !farm.ValidID(farm.JobPrefix, id) {
		return Outcome{}, noJob(id)
	}
	job, err := s.Store.Job(ctx, farm.Ref{Tenant: tenant, ID: id})
	if err != nil {
		return Outcome{}, err
	}
	if wait > 0 && !job.State.Final() {
		if job, err = s.watchTo(ctx, job, wait); err != nil {
			return Outcome{}, err
		}
	}
	return Outcome{Job: s.job(ctx, job), record: job}, nil
}

// watchTo waits for a job that exists already.
func (s *Service) watchTo(ctx context.Context, job *farm.Job, wait time.Duration) (*farm.Job, error) {
	watch, err := s.Store.Watch(ctx, job.ID)
	if err != nil {
		return nil, err
	}
	defer watch.Close()
	watch.OnlyEnd()
	return s.await(ctx, watch, job, wait, true)
}

// Cancel cancels a job: at once if it is queued, soon if it runs. A final job does not change.
func (s *Service) Cancel(ctx context.Context, tenant, id string, wait time.Duration) (Outcome, error) {
	if !farm.ValidID(farm.JobPrefix, id) {
		return Outcome{}, noJob(id)
	}
	job, err := s.Submitter.Cancel(ctx, farm.Ref{Tenant: tenant, ID: id})
	if err != nil {
		return Outcome{}, err
	}
	s.Canceled(ctx, job)
	if wait > 0 && !job.State.Final() {
		if job, err = s.watchTo(ctx, job, wait); err != nil {
			return Outcome{}, err
		}
	}
	return Outcome{Job: s.job(ctx, job), record: job}, nil
}

// JobQuery filters jobs; zero fields match all.
type JobQuery struct {
	SandboxID, JobID string
	States, Kinds    []string
	Outcome          string
	Created          store.TimeRange
	Page             store.Page
	Brief            bool // without what queued ones wait for, displayed values and artifacts
}

// Jobs lists jobs, newest first.
func (s *Service) Jobs(ctx context.Context, tenant string, q JobQuery) (wire.List[wire.Job], error) {
	list := wire.List[wire.Job]{Items: []wire.Job{}}
	f := store.JobFilter{JobID: q.JobID, SandboxID: q.SandboxID, Created: q.Created}
	if err := checkJobStates(q.States); err != nil {
		return list, err
	}
	for _, state := range q.States {
		f.States = append(f.States, farm.JobState(state))
	}
	for _, kind := range q.Kinds {
		if !slices.Contains(farm.JobKinds(), farm.JobKind(kind)) {
			return list, farm.Invalidf("kind %q is not known; it is one of %s", farm.Shorten(kind), listed(farm.JobKinds()))
		}
		f.Kinds = append(f.Kinds, farm.JobKind(kind))
	}
	if f.Outcome = farm.JobOutcome(q.Outcome); f.Outcome != "" && !slices.Contains(farm.JobOutcomes(), f.Outcome) {
		return list, farm.Invalidf("outcome %q is not known; it is one of %s", farm.Shorten(q.Outcome), listed(farm.JobOutcomes()))
	}
	jobs, next, err := s.Store.Jobs(ctx, tenant, f, q.Page)
	if err != nil {
		return list, err
	}
	list.NextCursor = wire.Cursor(next)
	for _, job := range jobs {
		if q.Brief {
			dropLinked(job.Result)
			list.Items = append(list.Items, s.shownJob(ctx, job))
		} else {
			list.Items = append(list.Items, s.job(ctx, job))
		}
	}
	return list, nil
}

// dropLinked removes what has links from a result: each costs as much as all else of it.
func dropLinked(r *farm.Result) {
	if r == nil {
		return
	}
	r.Artifacts = nil
	if r.Execute != nil {
		r.Execute.Rich = nil
	}
}

func checkJobStates(states []string) error {
	for _, state := range states {
		if !farm.JobState(state).Valid() {
			return farm.Invalidf("state %q is not known; it is one of %s", farm.Shorten(state), listed(farm.JobStates()))
		}
	}
	return nil
}

// listed names values for a sentence.
func listed[T ~string](values []T) string {
	names := make([]string, len(values))
	for i, v := range values {
		names[i] = string(v)
	}
	return strings.Join(names, ", ")
}

// Limits of the request in a job's record. The store has a longer one in full: Store.WholeRequest.
const (
	shownCodeBytes = 64 << 10 // of code, or of all commands together
	shownEntries   = 100      // of files and of hosts
)

// shown is a request as callers may see it: without values of env, contents of files and internal fields.
func shown(r *farm.Request) *farm.Request {
	out := &farm.Request{Install: r.Install, Context: r.Context, Files: shownFiles(r.Files)}
	if r.Sandbox != nil {
		spec := *r.Sandbox
		spec.Env = withoutValues(spec.Env)
		out.Sandbox = &spec
	}
	if r.Execute != nil {
		execute := *r.Execute
		execute.Env = withoutValues(execute.Env)
		out.Execute = &execute
	}
	if r.Command != nil {
		command := *r.Command
		command.Env = withoutValues(command.Env)
		out.Command = &command
	}
	if f := r.File; f != nil {
		out.File = &farm.FileRequest{Op: f.Op, Path: f.Path, To: f.To, Size: f.Size, Parts: shownFiles(f.Parts)}
	}
	return out
}

func withoutValues(env map[string]string) map[string]string {
	out := make(map[string]string, len(env))
	for name := range env {
		out[name] = ""
	}
	return out
}

func shownFiles(files []farm.InputFile) []farm.InputFile {
	out := make([]farm.InputFile, len(files))
	for i, f := range files {
		out[i] = farm.InputFile{Path: f.Path, Size: f.Size}
	}
	return out
}

// abridged is a shown request, cut to the limits of a record. The request itself is not changed, and nothing of it that was cut stays in memory with what is left.
func abridged(r *farm.Request) (short *farm.Request, cut bool) {
	out := *r
	if r.Execute != nil && len(r.Execute.Code) > shownCodeBytes {
		execute := *r.Execute
		execute.Code, cut = head(execute.Code, shownCodeBytes), true
		out.Execute = &execute
	}
	if r.Command != nil {
		command := *r.Command
		left := shownCodeBytes
		for i, text := range command.Commands {
			if len(text) > left {
				command.Commands, cut = append(slices.Clone(command.Commands[:i]), head(text, left)), true
				break
			}
			left -= len(text)
		}
		out.Command = &command
	}
	if len(r.Files) > shownEntries {
		out.Files, cut = slices.Clone(r.Files[:shownEntries]), true
	}
	if r.File != nil && len(r.File.Parts) > shownEntries {
		file := *r.File
		file.Parts, cut = slices.Clone(file.Parts[:shownEntries]), true
		out.File = &file
	}
	if r.Sandbox != nil && len(r.Sandbox.AllowHosts) > shownEntries {
		spec := *r.Sandbox
		spec.AllowHosts, cut = slices.Clone(spec.AllowHosts[:shownEntries]), true
		out.Sandbox = &spec
	}
	return &out, cut
}

// head is a copy of the beginning of a text, cut between characters.
func head(text string, limit int) string { return strings.Clone(strings.ToValidUTF8(text[:limit], "")) }

// JobRequest reads the full request of a job.
func (s *Service) JobRequest(ctx context.Context, tenant, id string) (wire.JobSpec, error) {
	if !farm.ValidID(farm.JobPrefix, id) {
		return wire.JobSpec{}, noJob(id)
	}
	job, err := s.Store.Shown(ctx, farm.Ref{Tenant: tenant, ID: id})
	switch {
	case err != nil:
		return wire.JobSpec{}, err
	case job.Redacted == nil:
		return wire.JobSpec{}, farm.NotFoundf("The job %s shows no request: the farm itself made it.", id)
	case !job.Truncated:
		return *jobSpec(job), nil
	}
	request, err := s.Store.WholeRequest(ctx, job.Ref())
	switch {
	case farm.CodeOf(err) == farm.CodeNotFound:
		return wire.JobSpec{}, farm.NotFoundf("The whole request of the job %s is not stored. The job itself shows its beginning.", id)
	case err != nil:
		return wire.JobSpec{}, fmt.Errorf("read request of job %s: %w", id, err)
	}
	whole := *job
	whole.Redacted, whole.Truncated = request, false
	return *jobSpec(&whole), nil
}

// jobSpec converts the request of a job; nil if the farm itself created the job.
func jobSpec(j *farm.Job) *wire.JobSpec {
	r := j.Redacted
	if r == nil {
		return nil
	}
	out := &wire.JobSpec{TimeoutSeconds: j.TimeoutSeconds, Context: r.Context, Truncated: j.Truncated, Files: specFiles(r.Files)}
	out.CallbackURL, _, _ = strings.Cut(j.CallbackURL, "?")
	if b := r.Sandbox; b != nil {
		resources := wire.Resources(b.Resources)
		out.Name, out.Image, out.Network, out.AllowHosts = b.Name, b.Image, string(b.Network), b.AllowHosts
		out.Runtime, out.Secrets = b.Runtime, secretNames(b.Secrets)
		out.Resources, out.Labels, out.TTLSeconds, out.IdleSeconds = &resources, b.Labels, b.TTLSeconds, b.IdleSeconds
		out.OnIdle = string(b.OnIdle)
		out.EnvNames = slices.Sorted(maps.Keys(b.Env))
		if b.GPU.Wanted() {
			out.GPU = &wire.GPU{Count: b.GPU.Count, Model: b.GPU.Model}
		}
		if j.Kind == farm.KindRun { // its sandbox lives as long as the run
			out.TTLSeconds, out.IdleSeconds = 0, 0
		}
	}
	if e := r.Execute; e != nil {
		out.Code, out.Language, out.Filename, out.Context, out.AutoInstall = e.Code, e.Language, e.Filename, e.Context, e.AutoInstall
		out.OnOutputLimit = onOutputLimit(e.StopAtOutputLimit)
		out.EnvNames = append(out.EnvNames, slices.Sorted(maps.Keys(e.Env))...)
	}
	if c := r.Command; c != nil {
		out.Commands, out.Cwd, out.ContinueOnError, out.Background, out.AutoInstall = c.Commands, c.Cwd, c.ContinueOnError, c.Background, c.AutoInstall
		out.OnOutputLimit = onOutputLimit(c.StopAtOutputLimit)
		out.EnvNames = slices.Sorted(maps.Keys(c.Env))
	}
	if i := r.Install; i != nil {
		out.Packages, out.Manager = i.Packages, i.Manager
	}
	if f := r.File; f != nil {
		out.Operation, out.Path, out.To, out.Size = string(f.Op), f.Path, f.To, f.Size
		out.Files = specFiles(f.Parts)
	}
	return out
}

func specFiles(files []farm.InputFile) []wire.SpecFile {
	out := make([]wire.SpecFile, len(files))
	for i, f := range files {
		out[i] = wire.SpecFile{Path: f.Path, Size: f.Size}
	}
	return out
}

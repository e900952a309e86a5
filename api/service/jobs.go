package service

import (
	"context"
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
		list.Items = append(list.Items, s.job(ctx, job))
	}
	return list, nil
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

package store

import (
	"context"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// JobFilter picks jobs that meet all of its fields; zero fields pick all. Of a list of values one must match.
//
// The HTTP parameters map to it one by one: job_id, sandbox_id, state and kind (each repeatable or comma-separated), outcome, created_after and
// created_before (RFC 3339, exclusive). The caller checks the values; an unknown state picks nothing.
type JobFilter struct {
	JobID     string
	SandboxID string
	States    []farm.JobState
	Kinds     []farm.JobKind
	Outcome   farm.JobOutcome
	Created   TimeRange
}

func (f JobFilter) picks(job *farm.Job) bool {
	return (f.JobID == "" || job.ID == f.JobID) && (f.SandboxID == "" || job.SandboxID == f.SandboxID) &&
		(len(f.States) == 0 || slices.Contains(f.States, job.State)) && (len(f.Kinds) == 0 || slices.Contains(f.Kinds, job.Kind)) &&
		(f.Outcome == "" || job.Outcome == f.Outcome) && f.Created.contains(job.CreatedAt)
}

// Jobs lists jobs, newest first, without hidden ones, except the one that JobID names. next is the cursor of the following page, "" at the
// end. A call looks at 2000 records at most and reads about 8 MiB of documents, so a page may be short, or empty, before the end. A bad
// cursor is CodeInvalid.
func (s *Store) Jobs(ctx context.Context, tenant string, f JobFilter, p Page) (jobs []*farm.Job, next string, err error) {
	if f.JobID != "" {
		job, err := s.Job(ctx, farm.Ref{Tenant: tenant, ID: f.JobID})
		switch {
		case farm.CodeOf(err) == farm.CodeNotFound:
			return nil, "", nil
		case err != nil:
			return nil, "", err
		case !f.picks(job):
			return nil, "", nil
		}
		return []*farm.Job{job}, "", nil
	}
	l := listing[listedJob]{
		index: s.Index(tenant, IndexJobs),
		load: func(ctx context.Context, ids []string) ([]*listedJob, error) {
			return fetch(ctx, s, tenant, KeyJob, ids, decodeListed)
		},
		id:   func(j *listedJob) string { return j.job.ID },
		want: func(j *listedJob) bool { return f.picks(j.job) }, passed: func(j *listedJob) bool { return f.Created.passed(j.job.CreatedAt) },
		complete: func(ctx context.Context, j *listedJob) (int, error) { return s.readDocuments(ctx, j.job, j.documents) },
	}
	if f.SandboxID != "" {
		l.index = s.Key(tenant, KeyJobsOf, f.SandboxID)
	}
	if len(f.States) > 0 || len(f.Kinds) > 0 || f.Outcome != "" || f.Created != (TimeRange{}) {
		l.prune = func(ctx context.Context, ids []string) ([]string, bool, error) {
			return s.pruneJobs(ctx, tenant, ids, f)
		}
	}
	found, next, err := scan(ctx, s, l, p)
	if err != nil {
		return nil, "", err
	}
	jobs = make([]*farm.Job, len(found))
	for i, j := range found {
		jobs[i] = j.job
	}
	return jobs, next, nil
}

// listedJob is a job whose documents are not read yet.
type listedJob struct {
	job       *farm.Job
	documents map[string]string
}

func decodeListed(_ context.Context, fields map[string]string) (*listedJob, error) {
	job, err := decodeJob(fields)
	return &listedJob{job: job, documents: map[string]string{"shown": fields["shown"], "result": fields["result"]}}, err
}

// pruneJobs looks at a few fields, so that the results of jobs that are not wanted are not read.
func (s *Store) pruneJobs(ctx context.Context, tenant string, ids []string, f JobFilter) (kept []string, end bool, err error) {
	pipe := s.rdb.Pipeline()
	cmds := make([]*redis.SliceCmd, len(ids))
	for i, id := range ids {
		cmds[i] = pipe.HMGet(ctx, s.Key(tenant, KeyJob, id), "state", "kind", "created", "outcome")
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, false, wrap("filter jobs", err)
	}
	for i, cmd := range cmds {
		fields := reply(cmd.Val())
		job := &farm.Job{
			ID: ids[i], SandboxID: f.SandboxID, State: farm.JobState(fields.text(0)), Kind: farm.JobKind(fields.text(1)), CreatedAt: moment(fields.text(2)),
			Outcome: farm.JobOutcome(fields.text(3)),
		}
		end = end || f.Created.passed(job.CreatedAt)
		if job.State != "" && f.picks(job) {
			kept = append(kept, ids[i])
		}
	}
	return kept, end, nil
}

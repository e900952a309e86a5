package store

import (
	"context"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// JobFilter picks jobs that meet all of its fields; zero fields pick all. Of a list of values one must match.
//
// The HTTP parameters map to it one by one: job_id, sandbox_id, state and kind (each repeatable or comma-separated), created_after and
// created_before (RFC 3339, exclusive). The caller checks the values; an unknown state picks nothing.
type JobFilter struct {
	JobID     string
	SandboxID string
	States    []farm.JobState
	Kinds     []farm.JobKind
	Created   TimeRange
}

func (f JobFilter) picks(job *farm.Job) bool {
	return (f.JobID == "" || job.ID == f.JobID) && (f.SandboxID == "" || job.SandboxID == f.SandboxID) &&
		(len(f.States) == 0 || slices.Contains(f.States, job.State)) && (len(f.Kinds) == 0 || slices.Contains(f.Kinds, job.Kind)) &&
		f.Created.contains(job.CreatedAt)
}

// Jobs lists jobs, newest first, without hidden ones, except the one that JobID names. next is the cursor of the following page, "" at the
// end. A call looks at 2000 records at most, so a page may be short, or empty, before the end. A bad cursor is CodeInvalid.
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
	l := listing[farm.Job]{
		index: s.index(tenant, "jobs"),
		load: func(ctx context.Context, ids []string) ([]*farm.Job, error) {
			return fetch(ctx, s, tenant, "job", ids, decodeJob)
		},
		id:   func(job *farm.Job) string { return job.ID },
		want: f.picks, passed: func(job *farm.Job) bool { return f.Created.passed(job.CreatedAt) },
	}
	if f.SandboxID != "" {
		l.index = s.key(tenant, "sj", f.SandboxID)
	}
	if len(f.States) > 0 || len(f.Kinds) > 0 || f.Created != (TimeRange{}) {
		l.prune = func(ctx context.Context, ids []string) ([]string, bool, error) {
			return s.pruneJobs(ctx, tenant, ids, f)
		}
	}
	return scan(ctx, s, l, p)
}

// pruneJobs looks at a few fields, so that the results of jobs that are not wanted are not read.
func (s *Store) pruneJobs(ctx context.Context, tenant string, ids []string, f JobFilter) (kept []string, end bool, err error) {
	pipe := s.rdb.Pipeline()
	cmds := make([]*redis.SliceCmd, len(ids))
	for i, id := range ids {
		cmds[i] = pipe.HMGet(ctx, s.key(tenant, "job", id), "state", "kind", "created")
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, false, wrap("filter jobs", err)
	}
	for i, cmd := range cmds {
		fields := reply(cmd.Val())
		job := &farm.Job{
			ID: ids[i], SandboxID: f.SandboxID, State: farm.JobState(fields.text(0)), Kind: farm.JobKind(fields.text(1)), CreatedAt: moment(fields.text(2)),
		}
		end = end || f.Created.passed(job.CreatedAt)
		if job.State != "" && f.picks(job) {
			kept = append(kept, ids[i])
		}
	}
	return kept, end, nil
}

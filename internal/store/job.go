package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// noJob is the error for an unknown job or another tenant's job.
func noJob(id string) error { return farm.NotFoundf("There is no job %s.", id) }

// Job reads a job; CodeNotFound if it is another tenant's, or gone.
func (s *Store) Job(ctx context.Context, ref farm.Ref) (*farm.Job, error) {
	fields, err := s.rdb.HGetAll(ctx, s.Key(ref.Tenant, KeyJob, ref.ID)).Result()
	if err != nil {
		return nil, wrap("read job", err)
	}
	if len(fields) == 0 {
		return nil, noJob(ref.ID)
	}
	return s.readJob(ctx, fields)
}

// Reload gives a job as it is now. If the message of its end has come to a watch of its end, that has the answer; else, or without a watch,
// the record is read. What never changes is taken from the job, like what it shows of its request.
func (s *Store) Reload(ctx context.Context, job *farm.Job, w *Watch) (*farm.Job, error) {
	if w != nil {
		if fields := w.ended(); fields != nil {
			now := *job
			now.Result, now.Error = nil, nil
			if err := decodeChanges(&now, fields); err != nil {
				return nil, err
			}
			_, err := s.readDocuments(ctx, &now, map[string]string{"result": fields["result"]})
			return &now, err
		}
	}
	fields, err := s.rdb.HGetAll(ctx, s.Key(job.Tenant, KeyJob, job.ID)).Result()
	if err != nil {
		return nil, wrap("read job", err)
	}
	if len(fields) == 0 {
		return nil, noJob(job.ID)
	}
	fields["shown"] = ""
	now, err := s.readJob(ctx, fields)
	if err == nil {
		now.Shown = job.Shown
	}
	return now, err
}

// FIFOHead reads the id of the first job in a sandbox's FIFO; "" if it is empty.
func (s *Store) FIFOHead(ctx context.Context, sandbox farm.Ref) (string, error) {
	id, err := s.rdb.LIndex(ctx, s.Key(sandbox.Tenant, KeyFIFO, sandbox.ID), 0).Result()
	if errors.Is(err, redis.Nil) {
		return "", nil
	}
	return id, wrap("read head of FIFO", err)
}

// UnfinishedJobs lists the unfinished jobs of a sandbox in the order they were accepted, also those outside its FIFO.
func (s *Store) UnfinishedJobs(ctx context.Context, sandbox farm.Ref) ([]farm.Ref, error) {
	ids, err := s.rdb.ZRange(ctx, s.Key(sandbox.Tenant, KeyUnfinished, sandbox.ID), 0, -1).Result()
	if err != nil {
		return nil, wrap("list unfinished jobs of sandbox", err)
	}
	return refs(sandbox.Tenant, ids), nil
}

// OpenJobs lists the tenant's unfinished jobs, oldest first, at most limit; 0 means all.
func (s *Store) OpenJobs(ctx context.Context, tenant string, limit int) ([]*farm.Job, error) {
	ids, err := s.rdb.ZRange(ctx, s.Index(tenant, IndexOpenJobs), 0, int64(limit)-1).Result()
	if err != nil {
		return nil, wrap("list unfinished jobs", err)
	}
	return fetch(ctx, s, tenant, KeyJob, ids, s.readJob)
}

func refs(tenant string, ids []string) []farm.Ref {
	out := make([]farm.Ref, len(ids))
	for i, id := range ids {
		out[i] = farm.Ref{Tenant: tenant, ID: id}
	}
	return out
}

// JobStates reads the states of a tenant's jobs. Jobs that are gone are left out.
func (s *Store) JobStates(ctx context.Context, tenant string, ids []string) (map[string]farm.JobState, error) {
	out := make(map[string]farm.JobState, len(ids))
	if len(ids) == 0 {
		return out, nil
	}
	pipe := s.rdb.Pipeline()
	cmds := make(map[string]*redis.StringCmd, len(ids))
	for _, id := range ids {
		if cmds[id] == nil {
			cmds[id] = pipe.HGet(ctx, s.Key(tenant, KeyJob, id), "state")
		}
	}
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return nil, wrap("read states of jobs", err)
	}
	for id, cmd := range cmds {
		if cmd.Val() != "" {
			out[id] = farm.JobState(cmd.Val())
		}
	}
	return out, nil
}

// fetch reads the hashes of ids in batches and skips those that are gone.
func fetch[T any](ctx context.Context, s *Store, tenant string, kind Kind, ids []string, read func(context.Context, map[string]string) (*T, error)) ([]*T, error) {
	const stretch = 500 // bounds the memory of one reply
	out := make([]*T, 0, len(ids))
	for len(ids) > 0 {
		part := ids[:min(stretch, len(ids))]
		ids = ids[len(part):]
		pipe := s.rdb.Pipeline()
		cmds := make([]*redis.MapStringStringCmd, len(part))
		for i, id := range part {
			cmds[i] = pipe.HGetAll(ctx, s.Key(tenant, kind, id))
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return nil, wrap("read records", err)
		}
		for _, cmd := range cmds {
			if len(cmd.Val()) == 0 {
				continue
			}
			item, err := read(ctx, cmd.Val())
			if err != nil {
				return nil, fmt.Errorf("read records: %w", err)
			}
			out = append(out, item)
		}
	}
	return out, nil
}

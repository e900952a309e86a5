package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Bounds of lists.
const (
	pageDefault = 50
	scanMost    = 2000 // records looked at in one call; a list that filters much gives a short page and a cursor
	scanStretch = 200
)

// Page asks for a stretch of a list, newest first.
type Page struct {
	Limit  int    // 0: 50
	Cursor string // of the page before; "": from the newest
}

// JobFilter picks jobs; zero fields pick all.
type JobFilter struct {
	SandboxID string
	State     farm.JobState
	Kind      farm.JobKind
}

// SandboxFilter picks sandboxes; zero fields pick all. All labels must be there.
type SandboxFilter struct {
	States []farm.SandboxState
	Labels map[string]string
}

// ArtifactFilter picks artifacts; zero fields pick all.
type ArtifactFilter struct {
	SandboxID string
	JobID     string
}

// Jobs lists jobs, newest first, those of hidden kinds not. next is the cursor of the following page, "" at the end; a
// page may be short before the end when the filter leaves out much. A bad cursor is CodeInvalid.
func (s *Store) Jobs(ctx context.Context, tenant string, f JobFilter, p Page) (jobs []*farm.Job, next string, err error) {
	index := s.index(tenant, "jobs")
	if f.SandboxID != "" {
		index = s.key(tenant, "sj", f.SandboxID)
	}
	return scan(ctx, s, index, p, func(ctx context.Context, ids []string) ([]*farm.Job, error) {
		if f.State != "" || f.Kind != "" {
			if ids, err = s.pickJobs(ctx, tenant, ids, f); err != nil {
				return nil, err
			}
		}
		return fetch(ctx, s, tenant, "job", ids, decodeJob)
	}, func(j *farm.Job) (string, bool) {
		return j.ID, (f.State == "" || j.State == f.State) && (f.Kind == "" || j.Kind == f.Kind)
	})
}

// pickJobs looks at state and kind only, so that results of others are not read.
func (s *Store) pickJobs(ctx context.Context, tenant string, ids []string, f JobFilter) ([]string, error) {
	pipe := s.rdb.Pipeline()
	cmds := make([]*redis.SliceCmd, len(ids))
	for i, id := range ids {
		cmds[i] = pipe.HMGet(ctx, s.key(tenant, "job", id), "state", "kind")
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, wrap("filter jobs", err)
	}
	picked := make([]string, 0, len(ids))
	for i, cmd := range cmds {
		state, _ := cmd.Val()[0].(string)
		kind, _ := cmd.Val()[1].(string)
		if (f.State == "" || state == string(f.State)) && (f.Kind == "" || kind == string(f.Kind)) {
			picked = append(picked, ids[i])
		}
	}
	return picked, nil
}

// Sandboxes lists sandboxes, newest first; cursors as in Jobs.
func (s *Store) Sandboxes(ctx context.Context, tenant string, f SandboxFilter, p Page) (boxes []*farm.Sandbox, next string, err error) {
	return scan(ctx, s, s.index(tenant, "boxes"), p, func(ctx context.Context, ids []string) ([]*farm.Sandbox, error) {
		return fetch(ctx, s, tenant, "sbx", ids, decodeSandbox)
	}, func(box *farm.Sandbox) (string, bool) {
		if len(f.States) > 0 && !slices.Contains(f.States, box.State) {
			return box.ID, false
		}
		for name, want := range f.Labels {
			if got, ok := box.Spec.Labels[name]; !ok || got != want {
				return box.ID, false
			}
		}
		return box.ID, true
	})
}

// Artifacts lists artifacts, newest first, without those that have expired; cursors as in Jobs.
func (s *Store) Artifacts(ctx context.Context, tenant string, f ArtifactFilter, p Page) (artifacts []*farm.Artifact, next string, err error) {
	index := s.index(tenant, "arts")
	switch {
	case f.JobID != "":
		index = s.key(tenant, "aj", f.JobID)
	case f.SandboxID != "":
		index = s.key(tenant, "as", f.SandboxID)
	}
	now := s.now()
	return scan(ctx, s, index, p, func(ctx context.Context, ids []string) ([]*farm.Artifact, error) {
		return s.loadArtifacts(ctx, tenant, ids)
	}, func(a *farm.Artifact) (string, bool) {
		return a.ID, now.Before(a.ExpiresAt) && (f.SandboxID == "" || a.SandboxID == f.SandboxID)
	})
}

func (s *Store) loadArtifacts(ctx context.Context, tenant string, ids []string) ([]*farm.Artifact, error) {
	pipe := s.rdb.Pipeline()
	cmds := make([]*redis.StringCmd, len(ids))
	for i, id := range ids {
		cmds[i] = pipe.Get(ctx, s.key(tenant, "art", id))
	}
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return nil, wrap("read artifacts", err)
	}
	out := make([]*farm.Artifact, 0, len(ids))
	for _, cmd := range cmds {
		text, err := cmd.Result()
		if errors.Is(err, redis.Nil) {
			continue
		}
		if err != nil {
			return nil, wrap("read artifact", err)
		}
		var a farm.Artifact
		if err := json.Unmarshal([]byte(text), &a); err != nil {
			return nil, fmt.Errorf("decode artifact: %w", err)
		}
		out = append(out, &a)
	}
	return out, nil
}

// scan walks an index from the newest entry, loads the records and keeps those that are wanted. The cursor is the number
// of the last entry that was looked at, so what is inserted meanwhile moves nothing.
func scan[T any](ctx context.Context, s *Store, index string, p Page, load func(context.Context, []string) ([]*T, error),
	want func(*T) (string, bool),
) ([]*T, string, error) {
	limit := p.Limit
	if limit <= 0 {
		limit = pageDefault
	}
	before := "+inf"
	if p.Cursor != "" {
		n, err := strconv.ParseInt(p.Cursor, 36, 64)
		if err != nil || n <= 0 || n >= 1<<53 {
			return nil, "", farm.Invalidf("The cursor %q is not one of ours. Start again without it.", clip(p.Cursor))
		}
		before = "(" + strconv.FormatInt(n, 10)
	}
	out := make([]*T, 0, min(limit, scanStretch))
	for seen := 0; seen < scanMost; {
		stretch := min(scanStretch, max(2*(limit-len(out)), 10))
		entries, err := s.rdb.ZRevRangeByScoreWithScores(ctx, index, &redis.ZRangeBy{Min: "-inf", Max: before, Count: int64(stretch)}).Result()
		if err != nil {
			return nil, "", wrap("read index", err)
		}
		if len(entries) == 0 {
			return out, "", nil
		}
		ids := make([]string, len(entries))
		scores := make(map[string]int64, len(entries))
		for i, entry := range entries {
			ids[i], _ = entry.Member.(string)
			scores[ids[i]] = int64(entry.Score)
		}
		items, err := load(ctx, ids)
		if err != nil {
			return nil, "", err
		}
		for _, item := range items {
			id, ok := want(item)
			if !ok {
				continue
			}
			if out = append(out, item); len(out) == limit {
				last := scores[ids[len(ids)-1]]
				if len(entries) < stretch && scores[id] == last {
					return out, "", nil // nothing is behind it
				}
				return out, cursor(scores[id]), nil
			}
		}
		if len(entries) < stretch {
			return out, "", nil
		}
		seen += len(entries)
		before = "(" + strconv.FormatInt(scores[ids[len(ids)-1]], 10)
	}
	n, err := strconv.ParseInt(before[1:], 10, 64)
	if err != nil {
		return nil, "", fmt.Errorf("read index: %w", err)
	}
	return out, cursor(n), nil
}

func cursor(n int64) string { return strconv.FormatInt(n, 36) }

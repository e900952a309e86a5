package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// ArtifactGrace is how long the record outlives its artifact, so that the scheduler can remove the object even after an outage of some days.
const ArtifactGrace = 7 * 24 * time.Hour

// artifactStretch bounds one script call.
const artifactStretch = 500

// AddArtifacts stores artifacts until their ExpiresAt. Adding one again only changes its fields.
func (s *Store) AddArtifacts(ctx context.Context, artifacts []farm.Artifact) error {
	byTenant := map[string][]farm.Artifact{}
	for _, a := range artifacts {
		byTenant[a.Tenant] = append(byTenant[a.Tenant], a)
	}
	for tenant, list := range byTenant {
		for len(list) > 0 {
			part := list[:min(artifactStretch, len(list))]
			list = list[len(part):]
			args := make([]any, 0, 6*len(part))
			for _, a := range part {
				doc, err := encode("artifact", a)
				if err != nil {
					return err
				}
				keep := max(a.ExpiresAt.Sub(s.now()), 0) + ArtifactGrace
				args = append(args, a.ID, doc, a.SandboxID, a.JobID, micros(a.ExpiresAt), keep.Milliseconds())
			}
			if _, err := s.run(ctx, "add artifacts", s.scripts.artifactAdd, tenant, args...); err != nil {
				return err
			}
		}
	}
	return nil
}

// Artifact reads an artifact; CodeNotFound if it is unknown, expired or another tenant's.
func (s *Store) Artifact(ctx context.Context, ref farm.Ref) (*farm.Artifact, error) {
	text, err := s.rdb.Get(ctx, s.key(ref.Tenant, "art", ref.ID)).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, wrap("read artifact", err)
	}
	var a farm.Artifact
	if err == nil {
		if err := json.Unmarshal([]byte(text), &a); err != nil {
			return nil, fmt.Errorf("decode artifact %s: %w", ref.ID, err)
		}
	}
	if err != nil || !s.now().Before(a.ExpiresAt) {
		return nil, farm.NotFoundf("There is no artifact %s.", ref.ID)
	}
	return &a, nil
}

// ExpiredArtifacts lists expired artifacts whose object may still exist, the oldest first.
func (s *Store) ExpiredArtifacts(ctx context.Context, tenant string, limit int) ([]farm.Artifact, error) {
	key := s.index(tenant, "artexp")
	ids, err := s.rdb.ZRangeByScore(ctx, key, &redis.ZRangeBy{Min: "-inf", Max: micros(s.now()), Count: int64(max(limit, 1))}).Result()
	if err != nil {
		return nil, wrap("list expired artifacts", err)
	}
	found, err := s.loadArtifacts(ctx, tenant, ids)
	if err != nil {
		return nil, err
	}
	out := make([]farm.Artifact, len(found))
	known := make(map[string]bool, len(found))
	for i, a := range found {
		out[i], known[a.ID] = *a, true
	}
	var gone []any
	for _, id := range ids {
		if !known[id] {
			gone = append(gone, id)
		}
	}
	if len(gone) > 0 {
		if err := s.rdb.ZRem(ctx, key, gone...).Err(); err != nil {
			return nil, wrap("remove index entries without a record", err)
		}
	}
	return out, nil
}

// DeleteArtifacts removes the records of artifacts whose objects are gone, and counts the records that this call removed: of two concurrent
// deletes of an artifact only one counts. The caller removes the object before, so that no object is left without a record.
func (s *Store) DeleteArtifacts(ctx context.Context, artifacts []farm.Artifact) (removed int, err error) {
	if len(artifacts) == 0 {
		return 0, nil
	}
	pipe := s.rdb.Pipeline()
	records := make([]*redis.IntCmd, len(artifacts))
	for i, a := range artifacts {
		records[i] = pipe.Del(ctx, s.key(a.Tenant, "art", a.ID))
		for _, index := range []string{s.index(a.Tenant, "artexp"), s.index(a.Tenant, "arts"), s.key(a.Tenant, "as", a.SandboxID), s.key(a.Tenant, "aj", a.JobID)} {
			pipe.ZRem(ctx, index, a.ID)
		}
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return 0, wrap("delete artifacts", err)
	}
	for _, record := range records {
		removed += int(record.Val())
	}
	return removed, nil
}

// ArtifactFilter picks artifacts that meet all of its fields; zero fields pick all.
//
// The HTTP parameters map to it one by one: job_id, sandbox_id, name (exact), created_after and created_before (RFC 3339, exclusive).
type ArtifactFilter struct {
	SandboxID string
	JobID     string
	Name      string
	Created   TimeRange
}

func (f ArtifactFilter) picks(a *farm.Artifact) bool {
	return (f.SandboxID == "" || a.SandboxID == f.SandboxID) && (f.JobID == "" || a.JobID == f.JobID) && (f.Name == "" || a.Name == f.Name) &&
		f.Created.contains(a.CreatedAt)
}

// Artifacts lists artifacts that have not expired, newest first; pages and cursors as in Jobs.
func (s *Store) Artifacts(ctx context.Context, tenant string, f ArtifactFilter, p Page) (artifacts []*farm.Artifact, next string, err error) {
	now := s.now()
	l := listing[farm.Artifact]{
		index: s.index(tenant, "arts"),
		load: func(ctx context.Context, ids []string) ([]*farm.Artifact, error) {
			return s.loadArtifacts(ctx, tenant, ids)
		},
		id:     func(a *farm.Artifact) string { return a.ID },
		want:   func(a *farm.Artifact) bool { return now.Before(a.ExpiresAt) && f.picks(a) },
		passed: func(a *farm.Artifact) bool { return f.Created.passed(a.CreatedAt) },
	}
	switch {
	case f.JobID != "":
		l.index = s.key(tenant, "aj", f.JobID)
	case f.SandboxID != "":
		l.index = s.key(tenant, "as", f.SandboxID)
	}
	return scan(ctx, s, l, p)
}

// loadArtifacts reads the records of ids and skips those that are gone.
func (s *Store) loadArtifacts(ctx context.Context, tenant string, ids []string) ([]*farm.Artifact, error) {
	if len(ids) == 0 {
		return nil, nil
	}
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

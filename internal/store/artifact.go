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

// ExpiredArtifacts lists expired artifacts whose object may still be there, the oldest first.
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

// DeleteArtifacts removes the records of artifacts whose objects are gone.
func (s *Store) DeleteArtifacts(ctx context.Context, artifacts []farm.Artifact) error {
	if len(artifacts) == 0 {
		return nil
	}
	pipe := s.rdb.Pipeline()
	for _, a := range artifacts {
		pipe.Del(ctx, s.key(a.Tenant, "art", a.ID))
		for _, index := range []string{s.index(a.Tenant, "artexp"), s.index(a.Tenant, "arts"), s.key(a.Tenant, "as", a.SandboxID), s.key(a.Tenant, "aj", a.JobID)} {
			pipe.ZRem(ctx, index, a.ID)
		}
	}
	_, err := pipe.Exec(ctx)
	return wrap("delete artifacts", err)
}

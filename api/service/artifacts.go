package service

import (
	"context"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// Artifact reads an artifact with a fresh link.
func (s *Service) Artifact(ctx context.Context, tenant, id string) (wire.Artifact, error) {
	if !farm.ValidID(farm.ArtifactPrefix, id) {
		return wire.Artifact{}, farm.NotFoundf("There is no artifact %q.", short(id))
	}
	a, err := s.Store.Artifact(ctx, farm.Ref{Tenant: tenant, ID: id})
	if err != nil {
		return wire.Artifact{}, err
	}
	if !s.Now().Before(a.ExpiresAt) {
		return wire.Artifact{}, farm.NotFoundf("The artifact %s has expired.", id)
	}
	return s.artifact(ctx, a), nil
}

// ArtifactQuery picks artifacts; zero fields pick all.
type ArtifactQuery struct {
	SandboxID, JobID string
	Page             store.Page
}

// Artifacts lists artifacts, newest first.
func (s *Service) Artifacts(ctx context.Context, tenant string, q ArtifactQuery) (wire.List[wire.Artifact], error) {
	found, next, err := s.Store.Artifacts(ctx, tenant, store.ArtifactFilter{SandboxID: q.SandboxID, JobID: q.JobID}, q.Page)
	if err != nil {
		return wire.List[wire.Artifact]{}, err
	}
	list := wire.List[wire.Artifact]{Items: make([]wire.Artifact, len(found)), NextCursor: wire.Cursor(next)}
	for i, a := range found {
		list.Items[i] = s.artifact(ctx, a)
	}
	return list, nil
}

package service

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// Artifact reads an artifact with a fresh link.
func (s *Service) Artifact(ctx context.Context, tenant, id string) (wire.Artifact, error) {
	a, err := s.artifactRecord(ctx, tenant, id)
	if err != nil {
		return wire.Artifact{}, err
	}
	return s.artifact(ctx, a), nil
}

func (s *Service) artifactRecord(ctx context.Context, tenant, id string) (*farm.Artifact, error) {
	if !farm.ValidID(farm.ArtifactPrefix, id) {
		return nil, farm.NotFoundf("There is no artifact %q.", farm.Shorten(id))
	}
	a, err := s.Store.Artifact(ctx, farm.Ref{Tenant: tenant, ID: id})
	if err != nil {
		return nil, err
	}
	if !s.Now().Before(a.ExpiresAt) {
		return nil, farm.NotFoundf("The artifact %s has expired.", id)
	}
	return a, nil
}

// DeleteArtifact removes an artifact: its object first, then its record, so that no object is left without a record. Links
// to it, also those in results, no longer work.
func (s *Service) DeleteArtifact(ctx context.Context, tenant, id string) error {
	a, err := s.artifactRecord(ctx, tenant, id)
	if err != nil {
		return err
	}
	if err := s.Blobs.Delete(ctx, a.Key); err != nil {
		return fmt.Errorf("remove artifact %s: %w", id, err)
	}
	removed, err := s.Store.DeleteArtifacts(ctx, []farm.Artifact{*a})
	switch {
	case err != nil:
		return err
	case removed == 0: // somebody else deleted it at the same time
		return farm.NotFoundf("There is no artifact %q.", id)
	}
	s.Logger.InfoContext(ctx, "artifact deleted", slog.String("artifact_id", id), slog.String("job_id", a.JobID), slog.String("tenant", tenant))
	return nil
}

// Artifacts lists artifacts, newest first.
func (s *Service) Artifacts(ctx context.Context, tenant string, f store.ArtifactFilter, p store.Page) (wire.List[wire.Artifact], error) {
	found, next, err := s.Store.Artifacts(ctx, tenant, f, p)
	if err != nil {
		return wire.List[wire.Artifact]{}, err
	}
	list := wire.List[wire.Artifact]{Items: make([]wire.Artifact, len(found)), NextCursor: wire.Cursor(next)}
	for i, a := range found {
		list.Items[i] = s.artifact(ctx, a)
	}
	return list, nil
}

package service

import (
	"context"
	"fmt"
	"io"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// OpenArtifact reads an artifact with a fresh link and opens its content, which must be closed. Content of more than limit
// bytes is nil.
func (s *Service) OpenArtifact(ctx context.Context, tenant, id string, limit int64) (wire.Artifact, io.ReadCloser, error) {
	shown, err := s.Artifact(ctx, tenant, id)
	if err != nil || shown.Size > limit {
		return shown, nil, err
	}
	a, err := s.Store.Artifact(ctx, farm.Ref{Tenant: tenant, ID: id})
	if err != nil {
		return shown, nil, err
	}
	content, _, err := s.Blobs.Get(ctx, a.Key, 0, 0)
	if err != nil {
		return shown, nil, fmt.Errorf("open artifact %s: %w", id, err)
	}
	return shown, content, nil
}

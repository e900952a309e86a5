package service

import (
	"context"
	"fmt"
	"io"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Linked reads a value that its event has a link to. farm.CodeNotFound: the code has replaced it meanwhile.
func (s *Service) Linked(ctx context.Context, a *farm.Artifact) ([]byte, error) {
	content, _, err := s.Blobs.Get(ctx, a.Key, 0, 0)
	if err != nil {
		return nil, fmt.Errorf("open value %s: %w", a.Path, err)
	}
	defer func() { _ = content.Close() }()
	value, err := io.ReadAll(io.LimitReader(content, a.Size))
	if err != nil {
		return nil, fmt.Errorf("read value %s: %w", a.Path, err)
	}
	return value, nil
}

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

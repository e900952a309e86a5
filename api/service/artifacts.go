package service

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"

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
		return nil, noSuch("There is no artifact", id)
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
// to it no longer work, and its job no longer lists it.
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

// Artifacts lists artifacts, newest first; states are those of the jobs that made them, none: any.
func (s *Service) Artifacts(ctx context.Context, tenant string, f store.ArtifactFilter, states []string, p store.Page) (wire.List[wire.Artifact], error) {
	list := wire.List[wire.Artifact]{Items: []wire.Artifact{}}
	if err := checkJobStates(states); err != nil {
		return list, err
	}
	found, next, err := s.Store.Artifacts(ctx, tenant, f, p)
	if err == nil && len(states) > 0 {
		found, err = s.ofJobsIn(ctx, tenant, states, found)
	}
	if err != nil {
		return list, err
	}
	list.NextCursor = wire.Cursor(next)
	for _, a := range found {
		list.Items = append(list.Items, s.artifact(ctx, a))
	}
	return list, nil
}

// ofJobsIn picks the artifacts whose jobs are in one of the states.
func (s *Service) ofJobsIn(ctx context.Context, tenant string, states []string, found []*farm.Artifact) ([]*farm.Artifact, error) {
	jobs := make([]string, len(found))
	for i, a := range found {
		jobs[i] = a.JobID
	}
	are, err := s.Store.JobStates(ctx, tenant, jobs)
	return slices.DeleteFunc(found, func(a *farm.Artifact) bool { return !slices.Contains(states, string(are[a.JobID])) }), err
}

// remaining is the result of a job without artifacts that were deleted or have expired, and a note that says how many. Values that were stored
// as such an artifact keep its id. The result itself does not change. Nil: there is none.
func (s *Service) remaining(ctx context.Context, j *farm.Job) *farm.Result {
	if j.Result == nil || !j.ArtifactsGone {
		return j.Result
	}
	list, err := s.Store.ArtifactsOfJob(ctx, j.Ref())
	if err != nil {
		s.Logger.WarnContext(ctx, "artifacts of a job are not known", slog.String("job_id", j.ID), slog.Any("error", err))
		return j.Result
	}
	left := make(map[string]bool, len(list))
	for i := range list {
		left[list[i].ID] = true
	}
	gone := func(a farm.Artifact) bool { return !left[a.ID] }
	r := *j.Result
	r.Artifacts = slices.DeleteFunc(slices.Clone(r.Artifacts), gone)
	if n := len(j.Result.Artifacts) - len(r.Artifacts); n > 0 {
		r.Notes = append(slices.Clone(r.Notes), fmt.Sprintf("Artifacts that were deleted or have expired, and are not listed: %d.", n))
	}
	if r.Execute != nil {
		e := *r.Execute
		e.Rich = slices.Clone(e.Rich)
		for i := range e.Rich {
			if a := e.Rich[i].Artifact; a != nil && gone(*a) {
				e.Rich[i].Artifact = &farm.Artifact{ID: a.ID} // without a key it has no link
			}
		}
		r.Execute = &e
	}
	return &r
}

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
	a, err := s.artifactRecord(ctx, tenant, id)
	if err != nil {
		return wire.Artifact{}, nil, err
	}
	shown := s.artifact(ctx, a)
	if a.Size > limit {
		return shown, nil, nil
	}
	content, _, err := s.Blobs.Get(ctx, a.Key, 0, 0)
	if err != nil {
		return shown, nil, fmt.Errorf("open artifact %s: %w", id, err)
	}
	return shown, content, nil
}

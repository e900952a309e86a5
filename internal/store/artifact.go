package store

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// ArtifactGrace is how long an outage may keep the scheduler from removing expired artifacts: the object store keeps objects that much longer.
const ArtifactGrace = 7 * 24 * time.Hour

// AddArtifacts records artifacts until their ExpiresAt and counts their bytes, which free as much of their job's reservation (ReserveStored).
// Adding one again only changes its fields. All of a job's artifacts are one manifest; their sandbox is that of the first. The job must run
// under this attempt, otherwise ErrFenced; 0 means any.
func (s *Store) AddArtifacts(ctx context.Context, attempt int, artifacts []farm.Artifact) error {
	for _, g := range byJob(artifacts) {
		err := s.changeManifest(ctx, g.job, attempt, func(m *manifest) bool {
			if m.version == "" {
				m.SandboxID = g.list[0].SandboxID
			}
			return m.put(g.list)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// jobArtifacts are artifacts of one job.
type jobArtifacts struct {
	job  farm.Ref
	list []farm.Artifact
}

// byJob groups artifacts by their jobs, in the order of their first ones.
func byJob(artifacts []farm.Artifact) []jobArtifacts {
	var groups []jobArtifacts
	at := map[farm.Ref]int{}
	for i := range artifacts {
		job := farm.Ref{Tenant: artifacts[i].Tenant, ID: artifacts[i].JobID}
		if _, ok := at[job]; !ok {
			at[job] = len(groups)
			groups = append(groups, jobArtifacts{job: job})
		}
		g := &groups[at[job]]
		g.list = append(g.list, artifacts[i])
	}
	return groups
}

// Artifact reads an artifact; CodeNotFound if it is unknown, expired or another tenant's.
func (s *Store) Artifact(ctx context.Context, ref farm.Ref) (*farm.Artifact, error) {
	if job := farm.ArtifactJob(ref.ID); job != "" {
		m, err := s.readManifest(ctx, farm.Ref{Tenant: ref.Tenant, ID: job})
		if err != nil {
			return nil, err
		}
		if e := m.find(ref.ID); e != nil && s.now().Before(ofNanos(e.Expires)) {
			return m.artifact(e), nil
		}
	}
	return nil, farm.NotFoundf("There is no artifact %s.", ref.ID)
}

// ArtifactsOfJob lists all artifacts of a job, also expired ones.
func (s *Store) ArtifactsOfJob(ctx context.Context, job farm.Ref) ([]farm.Artifact, error) {
	m, err := s.readManifest(ctx, job)
	if err != nil {
		return nil, err
	}
	out := make([]farm.Artifact, len(m.Entries))
	for i := range m.Entries {
		out[i] = *m.artifact(&m.Entries[i])
	}
	return out, nil
}

// ExpiredArtifacts lists the artifacts of jobs all of whose artifacts have expired, those that expired first, until there are limit or more.
func (s *Store) ExpiredArtifacts(ctx context.Context, tenant string, limit int) ([]farm.Artifact, error) {
	limit = max(limit, 1)
	jobs, err := s.rdb.ZRangeByScore(ctx, s.Index(tenant, IndexManifestEnds), &redis.ZRangeBy{Min: "-inf", Max: micros(s.now()), Count: int64(limit)}).Result()
	if err != nil {
		return nil, wrap("list expired artifacts", err)
	}
	var out []farm.Artifact
	for _, job := range jobs {
		m, err := s.readManifest(ctx, farm.Ref{Tenant: tenant, ID: job})
		if errors.Is(err, errNoManifest) {
			if err := s.forgetManifest(ctx, farm.Ref{Tenant: tenant, ID: job}); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		for i := range m.Entries {
			out = append(out, *m.artifact(&m.Entries[i]))
		}
		if len(out) >= limit {
			break
		}
	}
	return out, nil
}

// DeleteArtifacts removes artifacts whose objects are gone from the manifests of their jobs, and counts those that this call removed: of two
// concurrent deletes of an artifact only one counts. Their jobs are ArtifactsGone then. The caller removes the object before, so
// that no object is left without a record.
func (s *Store) DeleteArtifacts(ctx context.Context, artifacts []farm.Artifact) (removed int, err error) {
	for _, g := range byJob(artifacts) {
		ids := make(map[string]bool, len(g.list))
		for i := range g.list {
			ids[g.list[i].ID] = true
		}
		dropped := 0
		err := s.changeManifest(ctx, g.job, 0, func(m *manifest) bool {
			dropped = m.drop(ids)
			return dropped > 0
		})
		if err != nil {
			return removed, err
		}
		removed += dropped
	}
	return removed, nil
}

package jobs

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store/db"
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
		var e *manifestEntry
		if err := m.onCore(ctx, func() { e = m.find(ref.ID) }); err != nil {
			return nil, err
		}
		if e != nil && s.Now().Before(ofNanos(e.Expires)) {
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
	err = m.onCore(ctx, func() {
		for i := range m.Entries {
			out[i] = *m.artifact(&m.Entries[i])
		}
	})
	return out, err
}

// DropStrays removes what a job that has ended left in the object store and no record of an artifact names: uploads of attempts that failed or were
// broken off, and snapshots. Of a job whose list the object store has lost all stay, for the scheduler to remove after the retention.
func (s *Store) DropStrays(ctx context.Context, sandbox string, job farm.Ref) error {
	if s.Documents == nil {
		return nil
	}
	recorded, err := s.ArtifactsOfJob(ctx, job)
	if errors.Is(err, errNoManifest) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list artifacts: %w", err)
	}
	keys := make([]string, len(recorded))
	for i := range recorded {
		keys[i] = recorded[i].Key
	}
	prefix := farm.ArtifactsOf(sandbox, job)
	if _, err := s.Documents.AbortUploads(ctx, prefix, s.Now()); err != nil {
		return err
	}
	if _, err := s.Documents.DeletePrefix(ctx, prefix, keys...); err != nil {
		return err
	}
	_, err = s.Documents.DeletePrefix(ctx, farm.SnapshotsOf(job))
	return err
}

// ExpiredArtifacts lists the artifacts of jobs all of whose artifacts have expired, those that expired first, until there are limit or more.
func (s *Store) ExpiredArtifacts(ctx context.Context, tenant string, limit int) ([]farm.Artifact, error) {
	limit = max(limit, 1)
	jobs, err := s.Redis.ZRangeByScore(ctx, s.Index(tenant, db.IndexManifestEnds), &redis.ZRangeBy{Min: "-inf", Max: db.Micros(s.Now()), Count: int64(limit)}).Result()
	if err != nil {
		return nil, db.Wrap("list expired artifacts", err)
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

// ArtifactFilter picks artifacts that meet all of its fields; zero fields pick all.
//
// The HTTP parameters map to it one by one: job_id, sandbox_id, name (exact), created_after and created_before (RFC 3339, exclusive).
type ArtifactFilter struct {
	SandboxID string
	JobID     string
	Name      string
	Created   db.TimeRange
}

func (f ArtifactFilter) picks(m *manifest, e *manifestEntry) bool {
	return (f.SandboxID == "" || m.SandboxID == f.SandboxID) && (f.JobID == "" || m.job.ID == f.JobID) && (f.Name == "" || e.name() == f.Name) &&
		f.Created.Contains(ofNanos(e.Created))
}

const (
	// manifestStretch is how many manifests one batch reads: those in Redis have up to 32 KiB each.
	manifestStretch = 20
	// maxManifests is how many manifests one page looks at, and manifestBytes how many bytes of manifests in Redis, which the last one may exceed. One
	// that is a document ends the page: its place and its memory are waited for, for which nothing of another one may be held.
	maxManifests  = 500
	manifestBytes = 2 << 20
)

// position is a place in a list of artifacts: the place of the job, and the number of the last entry of its manifest that was looked at. What
// follows has a smaller number in this job, or is of a job with a smaller place. New artifacts do not shift it.
type position struct{ place, number int64 }

func parsePosition(cursor string) (position, error) {
	if cursor == "" {
		return position{place: 1 << 53}, nil
	}
	place, number, ok := strings.Cut(cursor, ".")
	p, err := strconv.ParseInt(place, 36, 64)
	n, err2 := strconv.ParseInt(number, 36, 64)
	if !ok || err != nil || err2 != nil || p <= 0 || p > 1<<53 || n < 0 {
		return position{}, farm.Invalidf("%q is not a cursor of this list. Start again without a cursor.", db.Clip(cursor))
	}
	return position{p, n}, nil
}

func (p position) String() string {
	return strconv.FormatInt(p.place, 36) + "." + strconv.FormatInt(p.number, 36)
}

// Artifacts lists artifacts that have not expired: the jobs that made them from the newest, of each job the last one first. A list whose filter
// drops most of them gives a short page and a cursor.
func (s *Store) Artifacts(ctx context.Context, tenant string, f ArtifactFilter, p db.Page) (artifacts []*farm.Artifact, next string, err error) {
	at, err := parsePosition(p.Cursor)
	if err != nil {
		return nil, "", err
	}
	l := artifactPage{filter: f, now: s.Now(), limit: p.Limit, at: at, passed: s.artifactSlack()}
	if l.limit <= 0 {
		l.limit = db.PageDefault
	}
	if f.JobID != "" {
		err = s.readManifests(ctx, tenant, []string{f.JobID}, l.look)
	} else {
		err = s.scanManifests(ctx, tenant, &l)
	}
	switch {
	case err != nil:
		return nil, "", err
	case l.more:
		return l.found, l.at.String(), nil
	default:
		return l.found, "", nil
	}
}

// artifactSlack is how far the times of artifacts may deviate from the order of their jobs: a job's first artifact, which gives it its place,
// may be the output of an install, long before the last.
func (s *Store) artifactSlack() time.Duration {
	return time.Duration(s.Limits.TimeoutMaxSeconds)*time.Second + time.Hour + db.OrderSlack
}

// scanManifests looks at the manifests of an index from the position of a page on, until the page is full or has looked at enough.
func (s *Store) scanManifests(ctx context.Context, tenant string, l *artifactPage) error {
	index := s.Index(tenant, db.IndexManifests)
	if l.filter.SandboxID != "" {
		index = s.Key(tenant, db.KeyManifestsOf, l.filter.SandboxID)
	}
	highest := strconv.FormatInt(l.at.place, 10) // the first batch has the job of the cursor once more,
	if l.at.number == 0 {                        // unless all of it was looked at
		highest = "(" + highest
	}
	for seen := 0; !l.done; seen += manifestStretch {
		if seen >= maxManifests {
			l.more = true
			return nil
		}
		entries, err := s.Redis.ZRevRangeByScoreWithScores(ctx, index, &redis.ZRangeBy{Min: "-inf", Max: highest, Count: manifestStretch}).Result()
		if err != nil {
			return db.Wrap("read index of artifacts", err)
		}
		jobs := make([]string, len(entries))
		for i, entry := range entries {
			jobs[i], _ = entry.Member.(string)
		}
		if err := s.readManifests(ctx, tenant, jobs, l.lookAmong); err != nil || len(entries) < manifestStretch || l.done {
			return err
		}
		last := int64(entries[len(entries)-1].Score)
		l.at = position{place: last} // all of it was looked at
		highest = "(" + strconv.FormatInt(last, 10)
	}
	return nil
}

// artifactPage collects a page of artifacts.
type artifactPage struct {
	filter ArtifactFilter
	now    time.Time
	limit  int
	passed time.Duration // see artifactSlack

	found []*farm.Artifact
	bytes int      // of the manifests in Redis that were looked at
	at    position // the last one that was looked at
	more  bool     // there is more behind it
	done  bool     // the page is full, or nothing behind can be wanted
}

// look adds the artifacts of a manifest that are wanted and behind the position. It reports whether the next manifest is needed.
func (l *artifactPage) look(m *manifest) (more bool) {
	from := int64(1<<63 - 1)
	if m.place == l.at.place {
		from = l.at.number
	}
	for i := len(m.Entries) - 1; i >= 0; i-- {
		e := &m.Entries[i]
		if e.N >= from || !l.now.Before(ofNanos(e.Expires)) {
			continue
		}
		if !l.filter.picks(m, e) {
			continue
		}
		if len(l.found) == l.limit { // one more than the page takes
			l.more, l.done = true, true
			return false
		}
		l.found = append(l.found, m.artifact(e))
		l.at = position{m.place, e.N}
	}
	if after := l.filter.Created.After; !after.IsZero() && m.newest().Before(after.Add(-l.passed)) {
		l.done = true
		return false
	}
	return true
}

// lookAmong is look for one of several manifests: the page ends with it if it has looked at enough.
func (l *artifactPage) lookAmong(m *manifest) (more bool) {
	more = l.look(m)
	if l.bytes += len(m.value); more && (l.bytes >= manifestBytes || strings.HasPrefix(m.value, db.Reference)) {
		l.at, l.more, l.done = position{place: m.place}, true, true
	}
	return more && !l.done
}

// storedReserveArgs are the arguments of stored_reserve.lua.
type storedReserveArgs struct {
	Job     string `lua:"job"`
	Attempt int    `lua:"attempt"`
	Bytes   int64  `lua:"bytes"`
}

// ReserveStored sets how many bytes a running job may still record as artifacts (farm.StoredBytes of each), in place of what it reserved before. Files are uploaded after
// their bytes are reserved, so that no tenant stores more than its limit. AddArtifacts frees what it counts, and the end of the job the rest.
// If the tenant's storage is full nothing changes, and free is how many bytes the job could reserve. ErrFenced if the job does not run under
// this attempt.
func (s *Store) ReserveStored(ctx context.Context, job farm.Ref, attempt int, bytes int64) (reserved bool, free int64, err error) {
	if bytes < 0 {
		return false, 0, farm.Errorf(farm.CodeInternal, "reserve storage: %d bytes", bytes)
	}
	r, err := s.Run(ctx, "reserve storage", "stored_reserve", job.Tenant, storedReserveArgs{
		Job: job.ID, Attempt: attempt, Bytes: bytes,
	})
	if err != nil {
		return false, 0, err
	}
	if r.Text(0) == "full" {
		free, _ := strconv.ParseInt(r.Text(1), 10, 64)
		return false, free, nil
	}
	err = fenced("reserve storage", job, r)
	return err == nil, 0, err
}

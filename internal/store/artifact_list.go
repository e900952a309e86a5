package store

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
)

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

const (
	// manifestStretch is how many manifests one batch reads: those in Redis have up to 32 KiB each.
	manifestStretch = 20
	// manifestsMost is how many manifests one page looks at, and entriesMost how many artifacts.
	manifestsMost = 500
	entriesMost   = 20_000
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
		return position{}, farm.Invalidf("%q is not a cursor of this list. Start again without a cursor.", clip(cursor))
	}
	return position{p, n}, nil
}

func (p position) String() string {
	return strconv.FormatInt(p.place, 36) + "." + strconv.FormatInt(p.number, 36)
}

// Artifacts lists artifacts that have not expired: the jobs that made them from the newest, of each job the last one first. A list whose filter
// drops most of them gives a short page and a cursor.
func (s *Store) Artifacts(ctx context.Context, tenant string, f ArtifactFilter, p Page) (artifacts []*farm.Artifact, next string, err error) {
	at, err := parsePosition(p.Cursor)
	if err != nil {
		return nil, "", err
	}
	l := artifactPage{filter: f, now: s.now(), limit: p.Limit, at: at, passed: s.artifactSlack()}
	if l.limit <= 0 {
		l.limit = pageDefault
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
	return time.Duration(s.limits.TimeoutMaxSeconds)*time.Second + time.Hour + orderSlack
}

// scanManifests looks at the manifests of an index from the position of a page on, until the page is full or has looked at enough.
func (s *Store) scanManifests(ctx context.Context, tenant string, l *artifactPage) error {
	index := s.Index(tenant, IndexManifests)
	if l.filter.SandboxID != "" {
		index = s.Key(tenant, KeyManifestsOf, l.filter.SandboxID)
	}
	highest := strconv.FormatInt(l.at.place, 10) // the first batch has the job of the cursor once more
	for seen := 0; !l.done; seen += manifestStretch {
		if seen >= manifestsMost {
			l.more = true
			return nil
		}
		entries, err := s.rdb.ZRevRangeByScoreWithScores(ctx, index, &redis.ZRangeBy{Min: "-inf", Max: highest, Count: manifestStretch}).Result()
		if err != nil {
			return wrap("read index of artifacts", err)
		}
		jobs := make([]string, len(entries))
		for i, entry := range entries {
			jobs[i], _ = entry.Member.(string)
		}
		if err := s.readManifests(ctx, tenant, jobs, l.look); err != nil || len(entries) < manifestStretch || l.done {
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
	seen  int      // entries that were looked at
	at    position // the last one that was looked at
	more  bool     // there is more behind it
	done  bool     // the page is full, or nothing behind can be wanted
}

// look adds the artifacts of a manifest that are wanted and behind the position. It reports whether the next manifest is needed.
func (l *artifactPage) look(m *manifest) (more bool, err error) {
	from := int64(1<<63 - 1)
	if m.place == l.at.place {
		from = l.at.number
	}
	for i := len(m.Entries) - 1; i >= 0; i-- {
		e := &m.Entries[i]
		if e.N >= from || !l.now.Before(ofNanos(e.Expires)) {
			continue
		}
		a := m.artifact(e)
		if !l.filter.picks(a) {
			continue
		}
		if len(l.found) == l.limit { // one more than the page takes
			l.more, l.done = true, true
			return false, nil
		}
		l.found = append(l.found, a)
		l.at = position{m.place, e.N}
	}
	if after := l.filter.Created.After; !after.IsZero() && m.newest().Before(after.Add(-l.passed)) {
		l.done = true
	} else if l.seen += len(m.Entries); l.seen >= entriesMost {
		l.at, l.more, l.done = position{place: m.place}, true, true
	}
	return !l.done, nil
}

package scheduler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/store"
)

// What keys in the object store begin with.
const (
	artifactsPrefix = "artifacts/"
	stagingPrefix   = "staging/"
	requestsPrefix  = "requests/" // long requests, which their jobs show in part
	indexPrefix     = "index/"    // packages that were read through
)

const (
	// uploadAge is how old an upload is that nobody will end: far older than one of the largest files takes.
	uploadAge = 3 * day
	// rulesSlack is how much longer than the farm the object store keeps what is the farm's to remove. Until then every
	// record that names it is gone, whatever outage there was.
	rulesSlack = store.ArtifactGrace + day
	// stagingSlack is the same for what is staged, which no record outlives.
	stagingSlack = 2 * day

	day = 24 * time.Hour
)

// rules sees to the bucket's lifecycle rules: what the farm forgot, for whatever reason, the object store removes itself.
func (s *Scheduler) rules(ctx context.Context) error {
	if !s.cfg.Lifecycle {
		return nil
	}
	retention := time.Duration(s.cfg.Limits.RetentionSeconds) * time.Second
	changed, err := s.deps.Blobs.EnsureLifecycle(ctx,
		blob.LifecycleRule{ID: "sandfarm-artifacts", Prefix: artifactsPrefix, Days: days(retention + rulesSlack), AbortDays: days(uploadAge)},
		blob.LifecycleRule{ID: "sandfarm-requests", Prefix: requestsPrefix, Days: days(retention + requestSlack + day), AbortDays: days(uploadAge)},
		blob.LifecycleRule{ID: "sandfarm-staging", Prefix: stagingPrefix, Days: days(stagingAge + stagingSlack), AbortDays: days(uploadAge)},
	)
	if errors.Is(err, blob.ErrNoLifecycle) {
		if !s.noRules {
			s.log.WarnContext(ctx, "the object store takes no lifecycle rules; the farm alone removes what is old", "error", err)
		}
		s.noRules = true
		return nil
	}
	if err != nil {
		return fmt.Errorf("see to lifecycle rules: %w", err)
	}
	if changed {
		s.log.InfoContext(ctx, "the bucket's lifecycle rules were set")
	}
	return nil
}

// days rounds up to whole days, the unit of the rules.
func days(d time.Duration) int { return int((d + day - 1) / day) }

// abort ends uploads that were begun and never brought to an end.
func (s *Scheduler) abort(ctx context.Context) error {
	var errs []error
	for _, prefix := range []string{artifactsPrefix, requestsPrefix, stagingPrefix, indexPrefix} {
		n, err := s.deps.Blobs.AbortUploads(ctx, prefix, time.Now().Add(-uploadAge))
		s.seen.aborted.Add(float64(n))
		if err != nil {
			errs = append(errs, fmt.Errorf("abort old uploads: %w", err))
		}
	}
	return errors.Join(errs...)
}

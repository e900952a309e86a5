package scheduler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

const (
	// uploadAge is the age at which an unfinished upload is aborted: much more than the largest file takes.
	uploadAge = 3 * day
	// rulesSlack is how much longer than the farm the object store keeps objects that the farm should remove. After that time no record names
	// them, whatever outage there was.
	rulesSlack = store.ArtifactGrace + day
	// stagingSlack is the same for staged objects, which have no records.
	stagingSlack = 2 * day

	day = 24 * time.Hour
)

// rules sets the bucket's lifecycle rules, so that the object store removes objects that the farm failed to remove.
func (s *Scheduler) rules(ctx context.Context) error {
	if !s.cfg.Lifecycle {
		return nil
	}
	retention := time.Duration(s.cfg.Limits.RetentionSeconds) * time.Second
	changed, err := s.deps.Blobs.EnsureLifecycle(ctx,
		blob.LifecycleRule{ID: "sandfarm-artifacts", Prefix: farm.ArtifactsPrefix, Days: days(retention + rulesSlack), AbortDays: days(s.outputAge())},
		blob.LifecycleRule{ID: "sandfarm-manifests", Prefix: farm.ManifestsPrefix, Days: days(retention + rulesSlack), AbortDays: days(uploadAge)},
		blob.LifecycleRule{ID: "sandfarm-records", Prefix: farm.RecordsPrefix, Days: days(retention + s.jobAge() + day), AbortDays: days(uploadAge)},
		blob.LifecycleRule{ID: "sandfarm-staging", Prefix: farm.StagingPrefix, Days: days(s.jobAge() + stagingSlack), AbortDays: days(uploadAge)},
	)
	if errors.Is(err, blob.ErrNoLifecycle) {
		if !s.noRules {
			s.log.WarnContext(ctx, "the object store supports no lifecycle rules; only the farm removes old objects", "error", err)
		}
		s.noRules = true
		return nil
	}
	if err != nil {
		return fmt.Errorf("set lifecycle rules: %w", err)
	}
	if changed {
		s.log.InfoContext(ctx, "lifecycle rules of the bucket set")
	}
	return nil
}

// jobAge is an age that no unfinished job has: it waits and runs at most as long as a sandbox lives. What a job has staged is an orphan at
// this age: input that it has not read yet, a file that was read for its caller, snapshots and events of its output.
func (s *Scheduler) jobAge() time.Duration {
	return time.Duration(s.cfg.Limits.TTLMaxSeconds)*time.Second + day
}

// outputAge is the age at which an unfinished upload of an artifact is aborted. The output of a job is uploaded while the job runs.
func (s *Scheduler) outputAge() time.Duration { return max(uploadAge, s.jobAge()) }

// days rounds up to whole days, the unit of the rules.
func days(d time.Duration) int { return int((d + day - 1) / day) }

// abort aborts old unfinished uploads.
func (s *Scheduler) abort(ctx context.Context) error {
	var errs []error
	for _, prefix := range []string{farm.ArtifactsPrefix, farm.RecordsPrefix, farm.StagingPrefix, farm.IndexPrefix} {
		age := uploadAge
		if prefix == farm.ArtifactsPrefix {
			age = s.outputAge()
		}
		n, err := s.deps.Blobs.AbortUploads(ctx, prefix, time.Now().Add(-age))
		s.seen.aborted.Add(float64(n))
		if err != nil {
			errs = append(errs, fmt.Errorf("abort old uploads: %w", err))
		}
	}
	return errors.Join(errs...)
}

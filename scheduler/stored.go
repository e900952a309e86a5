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

// Counts of what is stored, and of what jobs have in Redis, in the metric of wrong counts.
const (
	driftStored    = "stored_mb"
	driftJobMemory = "job_memory"
)

// repairPage is how many manifests of a tenant one script compares: some milliseconds of Redis.
const repairPage = 1000

// orphanAge is the age from which an object without a record counts as an orphan: its job has ended, or it never will.
const orphanAge = 2 * day

// walk is a comparison of the objects of artifacts with their records, over several runs of the loop.
type walk struct {
	after    string // the last key that was compared; empty: a new walk begins
	orphaned int64  // bytes of objects that no record names
	missing  int    // artifacts without objects, of jobs that have others
}

// compareStored compares what is counted as stored with the manifests, and corrects it; and the objects of artifacts with the manifests. An
// object that no record names is removed when it is older than any artifact is kept: after a loss of Redis, all are like that.
func (s *Scheduler) compareStored(ctx context.Context) error {
	err := s.each(ctx, func(ctx context.Context, tenant string) error {
		var drift store.StoredDrift
		for anew, done := true, false; !done; anew = false {
			var err error
			if drift, done, err = s.deps.Records.RepairStored(ctx, tenant, repairPage, anew); err != nil {
				return fmt.Errorf("repair what tenant %s stores: %w", tenant, err)
			}
		}
		if drift != (store.StoredDrift{}) {
			s.seen.drift.WithLabelValues(driftStored).Inc()
			s.log.WarnContext(ctx, "what is counted as stored was wrong and is corrected", "tenant", tenant,
				"bytes", drift.Bytes, "artifacts", drift.Artifacts, "reserved", drift.Reserved, "kept", drift.Kept, "manifests", drift.Manifests)
		}
		return s.compareJobMemory(ctx, tenant)
	})
	return errors.Join(err, s.compareBucket(ctx))
}

// compareJobMemory compares what is counted for a tenant's jobs in Redis with the jobs, and corrects it.
func (s *Scheduler) compareJobMemory(ctx context.Context, tenant string) error {
	drift, checked, err := s.deps.Records.RepairJobMemory(ctx, tenant)
	switch {
	case err != nil:
		return fmt.Errorf("repair the memory of jobs of tenant %s: %w", tenant, err)
	case !checked:
		s.log.InfoContext(ctx, "the tenant has too many jobs to check what is counted for them", "tenant", tenant)
	case drift != store.JobMemory{}:
		s.seen.drift.WithLabelValues(driftJobMemory).Inc()
		s.log.WarnContext(ctx, "what is counted for jobs in Redis was wrong and is corrected", "tenant", tenant,
			"unfinished", drift.Unfinished, "finished", drift.Finished)
	}
	return nil
}

// errPause ends a run of a walk that has taken long enough.
var errPause = errors.New("continue in the next run")

// compareBucket goes through the bucket from where it stopped, job by job: the keys of a job's artifacts follow each other.
func (s *Scheduler) compareBucket(ctx context.Context) error {
	until := time.Now().Add(storedFor)
	w := &s.bucket
	var job farm.Ref
	var objects []blob.Info
	compare := func() error {
		if len(objects) == 0 {
			return nil
		}
		if err := s.compareJob(ctx, w, job, objects); err != nil {
			return err
		}
		w.after, objects = objects[len(objects)-1].Key, nil
		if time.Now().After(until) {
			return errPause
		}
		return nil
	}
	err := s.deps.Blobs.ListAfter(ctx, farm.ArtifactsPrefix, w.after, func(o blob.Info) error {
		if of := farm.JobOfArtifact(o.Key); of != job {
			if err := compare(); err != nil {
				return err
			}
			job = of
		}
		objects = append(objects, o)
		return nil
	})
	if err == nil {
		err = compare()
	}
	switch {
	case errors.Is(err, errPause):
		return nil
	case err != nil:
		return fmt.Errorf("compare artifacts with the bucket: %w", err)
	}
	s.seen.orphaned.Set(float64(w.orphaned))
	s.seen.missing.Set(float64(w.missing))
	if w.orphaned > 0 || w.missing > 0 {
		s.log.WarnContext(ctx, "objects and records of artifacts differ", "orphaned_bytes", w.orphaned, "missing", w.missing)
	}
	*w = walk{}
	return nil
}

// compareJob compares the objects of one job with its manifest.
func (s *Scheduler) compareJob(ctx context.Context, w *walk, job farm.Ref, objects []blob.Info) error {
	var recorded []farm.Artifact
	if job.ID != "" {
		var err error
		if recorded, err = s.deps.Records.ArtifactsOfJob(ctx, job); err != nil {
			return err
		}
	}
	found := make(map[string]bool, len(recorded)) // by key: whether there is an object
	for i := range recorded {
		found[recorded[i].Key] = time.Since(recorded[i].CreatedAt) < orphanAge // it may be younger than the list
	}
	keep := time.Duration(s.cfg.Limits.RetentionSeconds)*time.Second + orphanAge
	var old []string
	for _, o := range objects {
		age := time.Since(o.Modified)
		if _, known := found[o.Key]; known {
			found[o.Key] = true
		} else if age > keep {
			old = append(old, o.Key)
		} else if age > orphanAge {
			w.orphaned += o.Size
		}
	}
	for _, there := range found {
		if !there {
			w.missing++
		}
	}
	if len(old) == 0 {
		return nil
	}
	s.log.WarnContext(ctx, "objects of artifacts without a record are removed", "objects", len(old), "job_id", job.ID, "tenant", job.Tenant)
	if err := s.deps.Blobs.Delete(ctx, old...); err != nil {
		return fmt.Errorf("remove objects without a record: %w", err)
	}
	return nil
}

// driftNodes is the index of sandboxes by node, in the metric of wrong counts.
const driftNodes = "nodes"

// checkQuotas compares the counts behind the quotas of each tenant with its records, repairs them, and adds what the tenant stores to its
// usage.
func (s *Scheduler) checkQuotas(ctx context.Context) error {
	return s.each(ctx, func(ctx context.Context, tenant string) error {
		drift, err := s.deps.Quotas.RepairUse(ctx, tenant)
		for name, by := range drift {
			s.seen.drift.WithLabelValues(name).Inc()
			s.log.WarnContext(ctx, "a count behind a quota was wrong and is repaired", "tenant", tenant, "count", name, "too_high_by", by)
		}
		if err != nil {
			err = fmt.Errorf("repair use of quotas of tenant %s: %w", tenant, err)
		}
		if stored := s.deps.Quotas.AddStored(ctx, tenant); stored != nil {
			err = errors.Join(err, fmt.Errorf("add what tenant %s stores to its usage: %w", tenant, stored))
		}
		return err
	})
}

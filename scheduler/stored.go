package scheduler

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
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

// comparison compares the objects of artifacts with their records, in a walk.
type comparison struct {
	position position
	orphaned int64 // bytes of objects that no record names
	missing  int   // artifacts without objects, of jobs that have others
}

// compareStored compares what is counted as stored with the manifests, and corrects it; and the objects of artifacts with the manifests. An
// object that no record names is removed when it is older than any artifact is kept: after a loss of Redis, all are like that.
func (s *Scheduler) compareStored(ctx context.Context) error {
	repair, end := context.WithTimeout(ctx, repairFor)
	defer end()
	err := s.each(repair, func(ctx context.Context, tenant string) error {
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

// compareBucket goes through the bucket from where it stopped, job by job: the keys of a job's artifacts follow each other.
func (s *Scheduler) compareBucket(ctx context.Context) error {
	c := &s.bucket
	otherJob := func(objects []blob.Info, o blob.Info) bool {
		return farm.JobOfArtifact(o.Key) != farm.JobOfArtifact(objects[0].Key)
	}
	done, err := s.walk(ctx, farm.ArtifactsPrefix, &c.position, time.Now().Add(storedFor), otherJob, func(objects []blob.Info) error {
		return s.compareJob(ctx, c, farm.JobOfArtifact(objects[0].Key), objects)
	})
	if err != nil {
		return fmt.Errorf("compare artifacts with the bucket: %w", err)
	}
	if !done {
		return nil
	}
	s.seen.orphaned.Set(float64(c.orphaned))
	s.seen.missing.Set(float64(c.missing))
	if c.orphaned > 0 || c.missing > 0 {
		s.log.WarnContext(ctx, "objects and records of artifacts differ", "orphaned_bytes", c.orphaned, "missing", c.missing)
	}
	*c = comparison{}
	return nil
}

// compareJob compares the objects of one job with its manifest.
func (s *Scheduler) compareJob(ctx context.Context, c *comparison, job farm.Ref, objects []blob.Info) error {
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
			c.orphaned += o.Size
		}
	}
	for _, there := range found {
		if !there {
			c.missing++
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

const (
	// uploadAge is the age at which an unfinished upload is aborted: much more than the largest file takes.
	uploadAge = 3 * day
	// rulesSlack is how much longer than the farm the object store keeps objects that the farm should remove. After that time no record names
	// them, whatever outage there was.
	rulesSlack = store.ArtifactGrace + day

	day = 24 * time.Hour
)

// rules sets the bucket's lifecycle rules, so that the object store removes objects that the farm failed to remove. Objects below records/ and staging/
// may be in use at any age, and only the records say so (removeOld): the rules for them that earlier releases have set are removed.
func (s *Scheduler) rules(ctx context.Context) error {
	if !s.cfg.Lifecycle {
		return nil
	}
	retention := time.Duration(s.cfg.Limits.RetentionSeconds) * time.Second
	changed, err := s.deps.Blobs.EnsureLifecycle(ctx,
		blob.LifecycleRule{ID: "sandfarm-artifacts", Prefix: farm.ArtifactsPrefix, Days: days(retention + rulesSlack), AbortDays: days(s.outputAge())},
		blob.LifecycleRule{ID: "sandfarm-manifests", Prefix: farm.ManifestsPrefix, Days: days(retention + rulesSlack), AbortDays: days(uploadAge)},
		blob.LifecycleRule{ID: "sandfarm-records"}, blob.LifecycleRule{ID: "sandfarm-requests"}, blob.LifecycleRule{ID: "sandfarm-staging"},
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

// jobAge is an age that what a running job has not recorded yet does not reach: a snapshot, the events and the upload of its output. It runs for the longest
// timeout at most, also in a sandbox whose ttl is renewed. What jobs have staged is old at this age if no record names it.
func (s *Scheduler) jobAge() time.Duration {
	return time.Duration(max(s.cfg.Limits.TTLMaxSeconds, s.cfg.Limits.TimeoutMaxSeconds))*time.Second + day
}

// outputAge is the age at which an unfinished upload of an artifact is aborted. The output of a job is uploaded while the job runs.
func (s *Scheduler) outputAge() time.Duration { return max(uploadAge, s.jobAge()) }

// days rounds up to whole days, the unit of the rules.
func days(d time.Duration) int { return int((d + day - 1) / day) }

// abort aborts old unfinished uploads, in another order each time (each).
func (s *Scheduler) abort(ctx context.Context) error {
	var errs []error
	prefixes := []string{farm.ArtifactsPrefix, farm.RecordsPrefix, farm.StagingPrefix, farm.IndexPrefix}
	rand.Shuffle(len(prefixes), func(i, j int) { prefixes[i], prefixes[j] = prefixes[j], prefixes[i] })
	for _, prefix := range prefixes {
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

// Kinds of trimmed records in the metrics.
const (
	trimmedEntries = "entry"
	trimmedJobs    = "job"
	trimmedTasks   = "task"
	trimmedQueues  = "queue"

	trimmedDocuments = "documents" // of one record
	trimmedCallbacks = "callback"  // given up beyond Limits.MaxCallbacks
	trimmedForgotten = "forgotten" // finished jobs and ended sandboxes, since Redis was half full
)

// trim removes what is beyond its bounds: index entries and documents whose records have expired, finished jobs beyond
// Limits.MaxFinished, callbacks beyond Limits.MaxCallbacks, archived tasks that are older than finished jobs are kept, and empty queues of nodes and GPU models that have no worker.
// The records of tenants come last, since one with many documents may take the rest of the step.
func (s *Scheduler) trim(ctx context.Context) error {
	_, expired := s.deps.Ledger.TrimKeys(ctx, time.Now().Add(-keepExpiredKeys))
	queues := s.trimQueues(ctx)
	callbacks := s.each(ctx, func(ctx context.Context, tenant string) error {
		dropped, err := s.deps.Jobs.DropCallbacks(ctx, tenant)
		s.seen.trimmed.WithLabelValues(trimmedCallbacks).Add(float64(dropped))
		if err != nil {
			return fmt.Errorf("trim callbacks of tenant %s: %w", tenant, err)
		}
		return nil
	})
	records := s.each(ctx, func(ctx context.Context, tenant string) error {
		n, err := s.deps.Ledger.Trim(ctx, tenant)
		s.seen.trimmed.WithLabelValues(trimmedEntries).Add(float64(n.Entries))
		s.seen.trimmed.WithLabelValues(trimmedJobs).Add(float64(n.Jobs))
		s.seen.trimmed.WithLabelValues(trimmedDocuments).Add(float64(n.Documented))
		if err != nil {
			return fmt.Errorf("trim records of tenant %s: %w", tenant, err)
		}
		return nil
	})
	return errors.Join(expired, queues, callbacks, records)
}

// forget removes finished jobs and ended sandboxes of the tenants with most, if Redis is half full.
func (s *Scheduler) forget(ctx context.Context) error {
	forgotten, err := s.deps.Ledger.ForgetFinished(ctx)
	for _, of := range forgotten {
		s.seen.trimmed.WithLabelValues(trimmedForgotten).Add(float64(of.Records))
		s.log.InfoContext(ctx, "finished jobs and ended sandboxes removed before their time: Redis is more than half full", "tenant", of.Tenant, "records", of.Records, "bytes", of.Bytes)
	}
	if err != nil {
		return fmt.Errorf("remove finished jobs: %w", err)
	}
	return nil
}

// keepExpiredKeys is how long API keys stay in the list after they have expired, so that their owners see why they no longer work.
const keepExpiredKeys = 7 * 24 * time.Hour

func (s *Scheduler) trimQueues(ctx context.Context) error {
	workers, err := s.deps.Ledger.Workers(ctx)
	if err != nil {
		return fmt.Errorf("list workers: %w", err)
	}
	served := map[string]bool{}
	for _, w := range workers {
		served[farm.NodeQueue(w.Node)] = true
		for _, queue := range w.Queues {
			served[queue] = true
		}
	}
	n, err := s.deps.Tasks.Trim(ctx, time.Now().Add(-time.Duration(s.cfg.Limits.RetentionSeconds)*time.Second), func(queue string) bool {
		return !served[queue] && comesAndGoes(queue)
	})
	s.seen.trimmed.WithLabelValues(trimmedTasks).Add(float64(n.Tasks))
	s.seen.trimmed.WithLabelValues(trimmedQueues).Add(float64(n.Queues))
	if err != nil {
		return fmt.Errorf("trim queues: %w", err)
	}
	return nil
}

// comesAndGoes reports whether a queue belongs to a node or a GPU model, and not to the farm.
func comesAndGoes(queue string) bool {
	model, gpu := farm.GPUQueue(queue)
	return gpu && model != "" || strings.HasPrefix(queue, farm.NodeQueue(""))
}

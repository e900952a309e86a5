package scheduler

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// each calls step for every tenant and joins the errors, so that an error of one tenant does not stop the others. The order is another one each
// time, so that a tenant that takes all the time of a run does not always keep it from the same others.
func (s *Scheduler) each(ctx context.Context, step func(ctx context.Context, tenant string) error) error {
	tenants, err := s.deps.Records.Tenants(ctx)
	if err != nil {
		return fmt.Errorf("list tenants: %w", err)
	}
	rand.Shuffle(len(tenants), func(i, j int) { tenants[i], tenants[j] = tenants[j], tenants[i] })
	var errs []error
	for _, tenant := range tenants {
		errs = append(errs, step(ctx, tenant))
	}
	return errors.Join(errs...)
}

// expire closes every sandbox whose deadline has passed, or hibernates it.
func (s *Scheduler) expire(ctx context.Context) error {
	return s.each(ctx, func(ctx context.Context, tenant string) error {
		due, err := s.deps.Records.Due(ctx, tenant, batch)
		if err != nil {
			return fmt.Errorf("find expired sandboxes: %w", err)
		}
		var errs []error
		for _, sandbox := range due {
			if err := s.expireOne(ctx, sandbox); err != nil {
				errs = append(errs, err)
			}
		}
		return errors.Join(errs...)
	})
}

// expireOne submits the job that closes a sandbox, or that hibernates one which is only idle and asked for that.
func (s *Scheduler) expireOne(ctx context.Context, sandbox farm.Ref) error {
	box, err := s.deps.Records.Sandbox(ctx, sandbox)
	if err != nil && farm.CodeOf(err) != farm.CodeNotFound {
		return fmt.Errorf("read sandbox %s: %w", sandbox.ID, err)
	}
	job := &farm.Job{
		ID: farm.NewID(farm.JobPrefix), Tenant: sandbox.Tenant, Kind: farm.KindClose, SandboxID: sandbox.ID,
		State: farm.JobQueued, CreatedAt: time.Now().UTC(), Inline: true,
	}
	request := &farm.Request{Close: &farm.CloseRequest{Expired: true, Reason: "Its time was up."}}
	if err == nil && box.SleepsAt(time.Now()) {
		job.Kind, job.Inline, request = farm.KindHibernate, false, &farm.Request{}
	}
	_, err = s.deps.Jobs.Submit(ctx, store.Accept{Job: job, Request: request})
	switch code := farm.CodeOf(err); {
	case err == nil && job.Kind == farm.KindClose:
		s.seen.expired.Inc()
	case err != nil && code != farm.CodeConflict && code != farm.CodeNotFound:
		return fmt.Errorf("%s sandbox %s: %w", job.Kind, sandbox.ID, err)
	}
	return nil
}

// sweep enqueues accepted jobs that are in no queue, and lets other workers take over the jobs of dead ones.
func (s *Scheduler) sweep(ctx context.Context) error {
	if !s.settled() {
		return nil
	}
	return s.each(ctx, func(ctx context.Context, tenant string) error {
		n, err := s.deps.Jobs.Sweep(ctx, tenant)
		if n > 0 {
			s.seen.requeued.Add(float64(n))
			s.log.InfoContext(ctx, "jobs enqueued again", "tenant", tenant, "jobs", n)
		}
		return err
	})
}

// retain removes expired artifacts: the object first, then the record, so that no object is left without a record. Many artifacts of a job
// expire at once: tenants take turns, one batch each, until none has more.
func (s *Scheduler) retain(ctx context.Context) error {
	var more []string // tenants whose last batch was full
	turn := func(ctx context.Context, tenant string) error {
		n, err := s.retainBatch(ctx, tenant)
		if n >= batch {
			more = append(more, tenant)
		}
		return err
	}
	err := s.each(ctx, turn)
	for len(more) > 0 {
		tenants := more
		more = nil
		for _, tenant := range tenants {
			err = errors.Join(err, turn(ctx, tenant))
		}
	}
	return err
}

func (s *Scheduler) retainBatch(ctx context.Context, tenant string) (int, error) {
	expired, err := s.deps.Records.ExpiredArtifacts(ctx, tenant, batch)
	if err != nil {
		return 0, fmt.Errorf("find expired artifacts of tenant %s: %w", tenant, err)
	}
	if len(expired) == 0 {
		return 0, nil
	}
	keys := make([]string, 0, len(expired))
	for _, a := range expired {
		keys = append(keys, a.Key)
	}
	if err := s.deps.Blobs.Delete(ctx, keys...); err != nil {
		return 0, fmt.Errorf("remove expired artifacts: %w", err)
	}
	removed, err := s.deps.Records.DeleteArtifacts(ctx, expired)
	if err != nil {
		return 0, fmt.Errorf("remove records of expired artifacts: %w", err)
	}
	s.seen.removed.Add(float64(removed))
	return len(expired), nil
}

// unstage removes staged objects that no entry of the index of documents names, and so no trim removes: a process or Redis lost them. Objects in use
// are younger. It also aborts unfinished uploads, and removes long requests and documents whose jobs are no longer kept. The documents of a
// job are removed with its record, so that only those are left here which no record has named.
func (s *Scheduler) unstage(ctx context.Context) error {
	retention := time.Duration(s.cfg.Limits.RetentionSeconds) * time.Second
	return errors.Join(s.removeOld(ctx, farm.StagingPrefix, s.jobAge()),
		s.removeOld(ctx, farm.RecordsPrefix, retention+s.jobAge()), s.abort(ctx))
}

// removeOld removes the objects below a prefix that are older than an age.
func (s *Scheduler) removeOld(ctx context.Context, prefix string, age time.Duration) error {
	var old []string
	err := s.deps.Blobs.List(ctx, prefix, func(o blob.Info) error {
		if time.Since(o.Modified) > age {
			old = append(old, o.Key)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("list old objects below %s: %w", prefix, err)
	}
	for chunk := range slices.Chunk(old, batch) {
		if err := s.deps.Blobs.Delete(ctx, chunk...); err != nil {
			return fmt.Errorf("remove old objects below %s: %w", prefix, err)
		}
	}
	return nil
}

package scheduler

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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
	if err != nil && farm.CodeOf(err) != farm.CodeNotFound && !errors.Is(err, store.ErrDocumentGone) {
		return fmt.Errorf("read sandbox %s: %w", sandbox.ID, err)
	}
	job := &farm.Job{
		ID: farm.NewID(farm.JobPrefix), Tenant: sandbox.Tenant, Kind: farm.KindClose, SandboxID: sandbox.ID,
		State: farm.JobQueued, CreatedAt: time.Now().UTC(), Inline: true,
	}
	request := &farm.Request{Close: &farm.CloseRequest{Expired: true, Reason: "Its time was up."}}
	if err == nil && box.Spec.IdleSeconds > 0 && time.Now().Before(box.ExpiresAt) {
		request.Close.Reason = fmt.Sprintf("It was not used for %s (idle_seconds).", farm.Plural(box.Spec.IdleSeconds, "second"))
	}
	if err == nil && box.SleepsAt(time.Now()) {
		job.Kind, job.Inline, request = farm.KindHibernate, false, &farm.Request{}
	}
	_, err = s.deps.Jobs.Submit(ctx, store.Accept{Job: job, Request: request})
	switch code := farm.CodeOf(err); {
	case err == nil && job.Kind == farm.KindClose:
		s.seen.expired.Inc()
	case code == farm.CodeExhausted && job.Kind == farm.KindHibernate: // the next time is after its idle_seconds: it must not keep its place before others
		_, touch := s.deps.Records.MoveSandbox(ctx, store.Move{Ref: sandbox, Touch: true, Generation: box.Generation})
		if errors.Is(touch, store.ErrMove) || errors.Is(touch, store.ErrFenced) || farm.CodeOf(touch) == farm.CodeNotFound {
			touch = nil // it has ended or moved meanwhile
		}
		return errors.Join(fmt.Errorf("hibernate sandbox %s: %w", sandbox.ID, err), touch)
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

// unstageFor is how much of a step each of the three parts of the loop unstage may take. What one leaves is the next one's.
const unstageFor = stepTimeout / 4

// unstage aborts unfinished uploads. It also removes old objects below staging/ and records/ that no entry of the index of documents names, and so
// no trim removes: a process or Redis lost them. Objects that are to be named yet are younger.
func (s *Scheduler) unstage(ctx context.Context) error {
	retention, began := time.Duration(s.cfg.Limits.RetentionSeconds)*time.Second, time.Now()
	aborts, done := context.WithDeadline(ctx, began.Add(unstageFor))
	defer done()
	return errors.Join(s.abort(aborts),
		s.removeOld(ctx, farm.StagingPrefix, &s.staging, s.jobAge(), began.Add(2*unstageFor)),
		s.removeOld(ctx, farm.RecordsPrefix, &s.records, retention+s.jobAge(), began.Add(3*unstageFor)))
}

// removeOld removes the orphaned objects below a prefix that are older than an age, from where the last run stopped, until a time. Age alone does not
// say that an object is not needed: a sandbox whose ttl is renewed lives without end, and so do its record and what waits in its FIFO.
func (s *Scheduler) removeOld(ctx context.Context, prefix string, from *position, age time.Duration, until time.Time) error {
	full := func(objects []blob.Info, _ blob.Info) bool { return len(objects) >= batch }
	_, err := s.walk(ctx, prefix, from, until, full, func(objects []blob.Info) error {
		var old []string
		for _, o := range objects {
			if time.Since(o.Modified) > age {
				old = append(old, o.Key)
			}
		}
		if len(old) == 0 {
			return nil
		}
		orphaned, err := s.deps.Records.OrphanedObjects(ctx, old)
		if err != nil || len(orphaned) == 0 {
			return err
		}
		return s.deps.Blobs.Delete(ctx, orphaned...)
	})
	if err != nil {
		return fmt.Errorf("remove old objects below %s: %w", prefix, err)
	}
	return nil
}

// position is the last key that a walk has handled; empty: a new walk begins.
type position string

// errPause ends a run of a walk that has taken long enough.
var errPause = errors.New("continue in the next run")

// walk goes through the objects below a prefix, in the order of keys, over several runs of a loop: from the position where the last run stopped
// until a time. It calls fn for groups of objects; a group ends before an object for which ends says so, and fn may not keep it.
// A group for which fn fails is the first of the next run. done says that this run came to the end.
func (s *Scheduler) walk(ctx context.Context, prefix string, from *position, until time.Time,
	ends func(group []blob.Info, next blob.Info) bool, fn func(group []blob.Info) error,
) (done bool, err error) {
	var group []blob.Info
	handle := func() error {
		if len(group) == 0 {
			return nil
		}
		if err := fn(group); err != nil {
			return err
		}
		*from, group = position(group[len(group)-1].Key), group[:0]
		if time.Now().After(until) {
			return errPause
		}
		return nil
	}
	err = s.deps.Blobs.ListAfter(ctx, prefix, string(*from), func(o blob.Info) error {
		if len(group) > 0 && ends(group, o) {
			if err := handle(); err != nil {
				return err
			}
		}
		group = append(group, o)
		return nil
	})
	if err == nil {
		err = handle()
	}
	switch {
	case errors.Is(err, errPause):
		return false, nil
	case err != nil:
		return false, err
	}
	*from = ""
	return true, nil
}

package dispatch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// Rules of the sweep.
const (
	sweepAge      = 3 * time.Second // younger jobs may still be on their way to a queue
	maxCrashes    = 3               // a job whose workers died or dropped it so often is marked as lost: it may be what kills them
	maxPutBack    = 32              // tasks of a job that are put back while those before them end; at each worker there is one
	maxMoreTasks  = 5               // of a job whose tasks were lost on their way, beside the first one
	callbackBatch = 200
	sweepBatch    = 5000                   // unfinished jobs that a tenant may have to be looked at in each sweep; Redis takes 12 microseconds for each
	sweepPace     = 400 * time.Microsecond // for each job of one that has more: its next sweep is later
)

// Sweep repairs a tenant's unfinished jobs and counts the tasks that it enqueued and the jobs that it ended. It enqueues runnable jobs that are
// in no queue, running jobs whose worker is dead, for a takeover, and callbacks that are in no queue. It marks jobs whose workers died three
// times as lost, and ends jobs whose sandbox has ended. It continues after an error and returns all of them.
func (d *Dispatcher) Sweep(ctx context.Context, tenant string) (n int, err error) {
	f, err := d.readFleet(ctx)
	if err != nil || f == nil {
		return 0, err
	}
	var problems []error
	if !d.resting(tenant) {
		if n, err = d.sweepJobs(ctx, tenant, f); err != nil {
			problems = append(problems, err)
		}
	}
	called, err := d.sweepCallbacks(ctx, tenant)
	return n + called, errors.Join(append(problems, err)...)
}

func (d *Dispatcher) sweepJobs(ctx context.Context, tenant string, f *fleet) (n int, err error) {
	var problems []error
	seen := 0
	for after := ""; ; {
		routes, next, err := d.store.OpenRoutes(ctx, tenant, after)
		if err != nil {
			return n, errors.Join(append(problems, err)...)
		}
		for i := range routes {
			did, err := d.sweepJob(ctx, &routes[i], f)
			if err != nil {
				problems = append(problems, fmt.Errorf("sweep job %s: %w", routes[i].Ref.ID, err))
			}
			if did {
				n++
			}
		}
		if next == "" {
			break
		}
		after, seen = next, seen+store.ScanStretch
	}
	d.looked(tenant, seen)
	return n, errors.Join(problems...)
}

// resting reports whether a tenant's jobs were looked at too lately for their number.
func (d *Dispatcher) resting(tenant string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.now().Before(d.rests[tenant])
}

// looked notes how many jobs a sweep has looked at.
func (d *Dispatcher) looked(tenant string, jobs int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if delete(d.rests, tenant); jobs > sweepBatch {
		d.rests[tenant] = d.now().Add(time.Duration(jobs) * sweepPace)
	}
}

func (d *Dispatcher) sweepJob(ctx context.Context, r *store.Route, f *fleet) (bool, error) {
	running := r.State == farm.JobRunning
	if running && f.alive(r.Worker) {
		return d.sweepAbandoned(ctx, r, f)
	}
	if d.now().Sub(r.CreatedAt) < sweepAge {
		return false, nil
	}
	gone := r.SandboxState == "" || r.SandboxState.Final()
	switch {
	case gone:
		return true, d.endLeftOver(ctx, r)
	case running && crashedOften(r):
		return true, d.giveUp(ctx, r)
	case stranded(r, f.nodes):
		return true, d.startElsewhere(ctx, r)
	default:
		return d.ensureEnqueued(ctx, r, f)
	}
}

// crashedOften reports whether a job is not tried again.
func crashedOften(r *store.Route) bool { return r.Attempt-r.GracefulRequeues >= maxCrashes }

// giveUp ends a job whose workers died or dropped it too often.
func (d *Dispatcher) giveUp(ctx context.Context, r *store.Route) error {
	return d.Force(ctx, r.Ref, farm.JobLost, &farm.JobError{
		Code: farm.CodeUnavailable,
		Message: fmt.Sprintf("%d workers died while they ran this job, or dropped it. See their logs, and send the job again if they died for another reason.",
			r.Attempt-r.GracefulRequeues),
	})
}

// sweepAbandoned frees a running job of a live worker that does not have it, so that a worker of its node continues it. That counts as a crash: the
// answer to a claim may be lost, but not each time.
func (d *Dispatcher) sweepAbandoned(ctx context.Context, r *store.Route, f *fleet) (bool, error) {
	if abandoned, err := d.abandoned(ctx, r, f); err != nil || !abandoned {
		return false, err
	}
	if crashedOften(r) {
		return true, d.giveUp(ctx, r)
	}
	d.log.WarnContext(ctx, "the worker of a running job does not have it; the job is continued by any worker of its node",
		"job_id", r.Ref.ID, "tenant", r.Ref.Tenant, "worker_id", r.Worker, "attempt", r.Attempt)
	err := d.store.Requeue(ctx, r.Ref, store.Requeue{Attempt: r.Attempt, Begun: true, Crashed: true})
	if errors.Is(err, store.ErrFenced) { // it was claimed again, or has ended
		return false, nil
	}
	if err == nil {
		d.forgetUnlisted(r.Ref.ID)
	}
	return err == nil, err
}

// ensureEnqueued enqueues a job's task unless it is in its queue, or a worker has it: the job may wait there for a place. A task can be active without a worker that has it, if the answer with
// the task was lost; asynq notices that after a minute or two. So a job whose task is active while no worker lists the job gets a second task.
// If the first one is alive after all, only one of them can claim the job. The second one may be lost in the same way, and so on; if there
// are too many, asynq finds them.
func (d *Dispatcher) ensureEnqueued(ctx context.Context, r *store.Route, f *fleet) (bool, error) {
	if f.lists(r) {
		d.forgetUnlisted(r.Ref.ID)
		return false, nil
	}
	enqueued, active, err := d.store.Enqueue(ctx, r.Ref, r.Attempt, 0)
	if active && err == nil {
		if abandoned, err := d.abandoned(ctx, r, f); err != nil || !abandoned {
			return false, err
		}
		enqueued, _, err = d.store.Enqueue(ctx, r.Ref, r.Attempt, maxMoreTasks)
	}
	if enqueued {
		d.forgetUnlisted(r.Ref.ID)
	}
	return enqueued, err
}

// sweepCallbacks looks at some callbacks, behind those that the sweep before has looked at.
func (d *Dispatcher) sweepCallbacks(ctx context.Context, tenant string) (n int, err error) {
	d.mu.Lock()
	passed := d.passed[tenant]
	d.mu.Unlock()
	refs, err := d.store.CallbacksBehind(ctx, tenant, passed, callbackBatch)
	if err != nil {
		return 0, err
	}
	d.mu.Lock()
	if delete(d.passed, tenant); len(refs) == callbackBatch {
		d.passed[tenant] = passed + callbackBatch
	}
	d.mu.Unlock()
	var problems []error
	for _, ref := range refs {
		state, err := d.queue.State(ctx, farm.QueueCallbacks, callbackTask(ref))
		switch {
		case err != nil:
		case state == "archived": // all its retries have failed: another round would never end
			d.log.WarnContext(ctx, "callback given up", "job_id", ref.ID, "tenant", ref.Tenant)
			err = d.dropCallback(ctx, ref)
		case state == "" || state == "completed":
			if err = d.callback(ctx, ref); err == nil {
				n++
			}
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("sweep callback of job %s: %w", ref.ID, err))
		}
	}
	return n, errors.Join(problems...)
}

package dispatch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/queue"
	"github.com/sandfarm/sandfarm/internal/store"
)

// Rules of the sweeper.
const (
	sweepAge      = 3 * time.Second // younger jobs are on their way
	stuckAge      = 5 * time.Second // a task active for so long whose job nobody has claimed was lost on its way
	deaths        = 3               // a job that so many workers died with kills them
	callbackBatch = 200
)

// Sweep looks after a tenant's unfinished jobs and gives the number of tasks enqueued and jobs ended. Accepted jobs that
// no queue holds are enqueued; running jobs whose worker is dead are enqueued for another one, and lost when three died
// with them; jobs whose sandbox is gone end; callbacks that no queue holds are enqueued. It goes on after an error and
// gives all of them.
func (d *Dispatcher) Sweep(ctx context.Context, tenant string) (n int, err error) {
	workers, err := d.store.Workers(ctx)
	if err != nil {
		return 0, err
	}
	alive, nodes := make(map[string]bool, len(workers)), make(map[string]bool, len(workers))
	for _, w := range workers {
		alive[w.ID], nodes[w.Node] = true, true
	}
	var problems []error
	for after := ""; ; {
		routes, next, err := d.store.OpenRoutes(ctx, tenant, after)
		if err != nil {
			return n, errors.Join(append(problems, err)...)
		}
		for i := range routes {
			did, err := d.sweepJob(ctx, &routes[i], alive, nodes)
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
		after = next
	}
	called, err := d.sweepCallbacks(ctx, tenant)
	return n + called, errors.Join(append(problems, err)...)
}

func (d *Dispatcher) sweepJob(ctx context.Context, r *store.Route, alive, nodes map[string]bool) (bool, error) {
	running := r.State == farm.JobRunning
	if running && alive[r.Worker] {
		return false, nil
	}
	if d.now().Sub(r.CreatedAt) < sweepAge {
		return false, nil
	}
	gone := r.SandboxState == "" || r.SandboxState.Final()
	switch {
	case gone && !running:
		return true, d.Force(ctx, r.Ref, farm.JobCanceled, sandboxGone())
	case gone && r.Kind == farm.KindClose: // its worker ended between the sandbox's end and the job's
		return true, d.Force(ctx, r.Ref, farm.JobCompleted, nil)
	case gone:
		return true, d.Force(ctx, r.Ref, farm.JobLost, &farm.JobError{
			Code: farm.CodeUnavailable, Message: "The worker and the sandbox of the job are gone. Create a new sandbox and send the job again.",
		})
	case running && r.Attempt-r.Uncounted >= deaths:
		return true, d.Force(ctx, r.Ref, farm.JobLost, &farm.JobError{
			Code:    farm.CodeUnavailable,
			Message: fmt.Sprintf("%d workers ended while they ran this job. See their logs; send the job again if they ended for another reason.", r.Attempt-r.Uncounted),
		})
	case stranded(r, nodes):
		return true, d.rescue(ctx, r)
	default:
		return d.ensure(ctx, r, taskID(r.Ref.ID, r.Attempt))
	}
}

// ensure enqueues a job's task unless its queue holds it. A task can be active on a queue without anyone who works on it,
// when the answer that brought it to a worker got lost; asynq notices that after a minute or two. So a queued job whose
// task has been active for a while gets a second task. If the first one lives after all, the record gives the job to one
// of them.
func (d *Dispatcher) ensure(ctx context.Context, r *store.Route, id string) (bool, error) {
	state, err := d.queue.State(ctx, queueOf(r), id)
	if err != nil {
		return false, err
	}
	switch {
	case state == "active" && d.lost(id):
		id += ".again"
		if held, err := d.queue.Has(ctx, queueOf(r), id); err != nil || held {
			return false, err
		}
	case state == "active", state != "" && state != "archived" && state != "completed":
		return false, nil
	}
	d.forget(id)
	return true, d.enqueue(ctx, r, id)
}

// lost reports whether a task has been seen active for stuckAge without its job being claimed.
func (d *Dispatcher) lost(id string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.now()
	since, known := d.stuck[id]
	if !known {
		d.stuck[id] = now
		for other, at := range d.stuck { // what was claimed since is of no interest
			if now.Sub(at) > time.Hour {
				delete(d.stuck, other)
			}
		}
		return false
	}
	return now.Sub(since) >= stuckAge
}

func (d *Dispatcher) forget(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.stuck, id)
}

func (d *Dispatcher) sweepCallbacks(ctx context.Context, tenant string) (n int, err error) {
	refs, err := d.store.Callbacks(ctx, tenant, callbackBatch)
	if err != nil {
		return 0, err
	}
	var problems []error
	for _, ref := range refs {
		state, err := d.queue.State(ctx, queue.QueueCallbacks, "callback-"+ref.ID)
		switch {
		case err != nil:
		case state == "archived": // all its tries are over: another round would never end
			d.log.WarnContext(ctx, "callback given up", "job_id", ref.ID, "tenant", ref.Tenant)
			err = d.store.CallbackDone(ctx, ref)
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

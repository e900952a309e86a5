// Package dispatch connects records and tasks. The scripts of the store enqueue a job in the step that makes it runnable; this package does
// what else follows from the end of a job or of a node, and finds runnable jobs that are in no queue.
//
// It promises that an accepted job gets a task: normally at once, after an outage by Sweep. It has no state that matters: any number of
// processes may dispatch and sweep side by side, since tasks have names and records have fences.
package dispatch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/queue"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/tracing"
)

// Times of tasks.
const (
	callbackTime   = 2 * time.Minute // one delivery
	callbackTries  = 15              // after the first one
	enqueueTimeout = 5 * time.Second // of steps that must happen even if the caller is gone
)

// Dispatcher connects the store and the queue. The store's scripts enqueue a job in the step that makes it runnable; the dispatcher does what
// else follows from the end of a job, and finds what was lost. It is safe for concurrent use.
type Dispatcher struct {
	store   *store.Store
	queue   *queue.Client
	limits  farm.Limits
	log     *slog.Logger
	now     func() time.Time
	backlog *backlogCache

	mu       sync.Mutex
	unlisted map[string]*unlisted // by the id of the job
	rests    map[string]time.Time // by tenant: when the sweep looks at its jobs again, see looked
	passed   map[string]int       // by tenant: the callbacks that sweeps have passed by; 0: they begin with the first one
}

// New makes a Dispatcher. A nil logger means slog.Default.
func New(s *store.Store, q *queue.Client, limits farm.Limits, logger *slog.Logger) *Dispatcher {
	if logger == nil {
		logger = slog.Default()
	}
	return &Dispatcher{store: s, queue: q, limits: limits, log: logger, now: time.Now, backlog: newBacklogCache(), unlisted: map[string]*unlisted{}, rests: map[string]time.Time{}, passed: map[string]int{}}
}

// Submit accepts a job, see store.Accept, with the trace of its call.
func (d *Dispatcher) Submit(ctx context.Context, a store.Accept) (store.Accepted, error) {
	if a.Job.Trace == "" {
		a.Job.Trace = tracing.Parent(ctx)
	}
	return d.store.Accept(ctx, a)
}

// Finish ends a job, see store.Finish, and enqueues its callback if it has a callback URL.
func (d *Dispatcher) Finish(ctx context.Context, f store.Finish) error {
	end, err := d.store.Finish(ctx, f)
	if err != nil {
		return err
	}
	d.after(ctx, f.Ref, end)
	return nil
}

// Force ends an unfinished job, whichever worker runs it; see store.Force.
func (d *Dispatcher) Force(ctx context.Context, ref farm.Ref, state farm.JobState, jerr *farm.JobError) error {
	end, err := d.store.Force(ctx, ref, state, jerr)
	if err != nil {
		return err
	}
	d.after(ctx, ref, end)
	return nil
}

// Cancel ends a queued job at once and asks the worker of a running one to end it; see store.Cancel. With a queued create end the jobs that
// wait for its sandbox.
func (d *Dispatcher) Cancel(ctx context.Context, ref farm.Ref) (*farm.Job, error) {
	return d.CancelFor(ctx, ref, nil)
}

// CancelFor is Cancel on behalf of someone other than the job's caller; jerr tells the caller why.
func (d *Dispatcher) CancelFor(ctx context.Context, ref farm.Ref, jerr *farm.JobError) (*farm.Job, error) {
	job, end, err := d.store.Cancel(ctx, ref, jerr)
	if err != nil {
		return nil, err
	}
	d.after(ctx, ref, end)
	return job, nil
}

// after does what follows from the end of a job. The end is stored, so failures here are not the caller's: they are logged, and Sweep makes
// up for them.
func (d *Dispatcher) after(ctx context.Context, ref farm.Ref, end store.Ended) {
	if end.Sandbox != nil {
		d.drain(ctx, *end.Sandbox)
	}
	if !end.Callback {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), enqueueTimeout) // the end is stored, even if the caller is gone
	defer cancel()
	if err := d.callback(ctx, ref); err != nil {
		d.log.WarnContext(ctx, "callback is not in its queue yet; the sweep will enqueue it", "job_id", ref.ID, "tenant", ref.Tenant, "error", err)
	}
}

// drain cancels the unfinished jobs of a sandbox that ended with its creation.
func (d *Dispatcher) drain(ctx context.Context, sandbox farm.Ref) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), enqueueTimeout) // part of an end that is stored
	defer cancel()
	jobs, err := d.store.UnfinishedJobs(ctx, sandbox)
	for _, ref := range jobs {
		err = errors.Join(err, d.Force(ctx, ref, farm.JobCanceled, sandboxGone()))
	}
	if err != nil {
		d.log.WarnContext(ctx, "jobs of an ended sandbox are not canceled yet; the sweep will cancel them", "sandbox_id", sandbox.ID, "tenant", sandbox.Tenant, "error", err)
	}
}

func sandboxGone() *farm.JobError {
	return &farm.JobError{Code: farm.CodeConflict, Message: "The sandbox ended before the job started. Create a new sandbox and send the job again."}
}

// callbackTask is the id of the task of a callback.
func callbackTask(ref farm.Ref) string { return "callback-" + ref.ID }

// callback enqueues the callback of a finished job.
func (d *Dispatcher) callback(ctx context.Context, ref farm.Ref) error {
	err := d.queue.Enqueue(ctx, farm.QueueCallbacks, queue.Task{Type: queue.TypeCallback, Ref: ref},
		queue.EnqueueOptions{ID: callbackTask(ref), Timeout: callbackTime, MaxRetry: callbackTries})
	if err != nil {
		return fmt.Errorf("enqueue callback: %w", err)
	}
	return nil
}

// dropBatch is how many callbacks of a tenant one DropCallbacks gives up at most.
const dropBatch = 10_000

// DropCallbacks gives up the oldest callbacks of a tenant beyond Limits.MaxCallbacks, and returns how many. A receiver that is down would
// otherwise keep jobs and tasks for as long as their deliveries are repeated, which is hours.
func (d *Dispatcher) DropCallbacks(ctx context.Context, tenant string) (n int, err error) {
	refs, err := d.store.CallbacksBeyond(ctx, tenant, d.limits.MaxCallbacks, dropBatch)
	if err != nil {
		return 0, err
	}
	var problems []error
	for _, ref := range refs {
		if err := d.dropCallback(ctx, ref); err != nil {
			problems = append(problems, fmt.Errorf("drop callback of job %s: %w", ref.ID, err))
			if ctx.Err() != nil {
				break
			}
			continue
		}
		n++
	}
	if n > 0 {
		d.log.WarnContext(ctx, "callbacks given up: their receiver does not take them", "tenant", tenant, "callbacks", n,
			"most", d.limits.MaxCallbacks, "first_job_id", refs[0].ID)
	}
	return n, errors.Join(problems...)
}

// dropCallback gives up a callback. Its record goes first: the sweep would enqueue a task again that is gone.
func (d *Dispatcher) dropCallback(ctx context.Context, ref farm.Ref) error {
	if err := d.store.CallbackDone(ctx, ref); err != nil {
		return err
	}
	return d.queue.Remove(ctx, farm.QueueCallbacks, callbackTask(ref))
}

// AbortCells cancels the cells of notebooks that wait in the FIFO of a sandbox: all, or those of one session.
func (d *Dispatcher) AbortCells(ctx context.Context, sandbox farm.Ref, session string) error {
	cells, err := d.store.QueuedCells(ctx, sandbox, session)
	for _, ref := range cells { // the newest first, so none becomes the next to run
		err = errors.Join(err, d.abort(ctx, ref))
	}
	return err
}

// abort cancels a cell that waits.
func (d *Dispatcher) abort(ctx context.Context, ref farm.Ref) error {
	_, err := d.CancelFor(ctx, ref, aborted())
	if farm.CodeOf(err) == farm.CodeNotFound {
		return nil
	}
	return err
}

func aborted() *farm.JobError {
	return &farm.JobError{Code: farm.CodeConflict, Message: "A cell before this one failed, or the kernel was restarted. Send the cell again."}
}

// stranded reports whether a create depends on a node without a worker: it claimed a member of that node's pool, or its sandbox was being
// started there. nodes are those with a live worker; the worker of a running job is known to be dead.
func stranded(r *store.Route, nodes map[string]bool) bool {
	if !creates(*r) {
		return false
	}
	if r.State == farm.JobRunning {
		return r.SandboxState == farm.SandboxStarting && r.Node != "" && !nodes[r.Node]
	}
	return r.State == farm.JobQueued &&
		strings.HasPrefix(r.Queue, farm.NodeQueue("")) && !nodes[strings.TrimPrefix(r.Queue, farm.NodeQueue(""))]
}

// startElsewhere takes a create or a run whose sandbox is not ready away from its node, which no worker serves, and enqueues it for any node. It
// ends the job if a cancel was requested. It does nothing if a worker has the job again, or the sandbox is ready or has ended.
func (d *Dispatcher) startElsewhere(ctx context.Context, r *store.Route) error {
	how := store.Requeue{Attempt: r.Attempt, Elsewhere: true, Crashed: r.State == farm.JobRunning}
	err := d.store.Requeue(ctx, r.Ref, how)
	switch {
	case errors.Is(err, store.ErrCanceled):
		return d.Force(ctx, r.Ref, farm.JobCanceled, nil)
	case errors.Is(err, store.ErrFenced), errors.Is(err, store.ErrMove):
		return nil
	default:
		return err
	}
}

// PutBack puts a job that its worker cannot begin now back into its queue, for any worker, unless it has begun or ended. The task that the worker has must end
// afterwards.
func (d *Dispatcher) PutBack(ctx context.Context, ref farm.Ref) error {
	r, err := d.store.Route(ctx, ref)
	if farm.CodeOf(err) == farm.CodeNotFound {
		return nil
	}
	if err != nil || r.State != farm.JobQueued {
		return err
	}
	_, _, err = d.store.Enqueue(ctx, ref, r.Attempt, maxPutBack)
	return err
}

// RegisterQueues lists queues that a worker serves, so that they are seen before their first task and after a loss of Redis.
func (d *Dispatcher) RegisterQueues(ctx context.Context, queues ...string) error {
	return d.queue.Register(ctx, queues...)
}

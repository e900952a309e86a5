package dispatch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	store  *store.Store
	queue  *queue.Client
	limits farm.Limits
	log    *slog.Logger
	now    func() time.Time
	parked *parkedCache

	mu       sync.Mutex
	unlisted map[string]*unlisted // by the id of the job
}

// New makes a Dispatcher. A nil logger means slog.Default.
func New(s *store.Store, q *queue.Client, limits farm.Limits, logger *slog.Logger) *Dispatcher {
	if logger == nil {
		logger = slog.Default()
	}
	return &Dispatcher{store: s, queue: q, limits: limits, log: logger, now: time.Now, parked: newParkedCache(), unlisted: map[string]*unlisted{}}
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
	err := d.queue.Enqueue(ctx, queue.QueueCallbacks, queue.Task{Type: queue.TypeCallback, Ref: ref},
		queue.EnqueueOptions{ID: callbackTask(ref), Timeout: callbackTime, MaxRetry: callbackTries})
	if err != nil {
		return fmt.Errorf("enqueue callback: %w", err)
	}
	return nil
}

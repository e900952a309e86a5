package jobs

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store/db"
	"github.com/sandfarm/sandfarm/internal/store/sandboxes"
)

// Claim is a job that a worker has claimed, with all that it needs.
type Claim struct {
	Job     *farm.Job     // running, under the attempt that fences everything that follows
	Request *farm.Request // nil until LoadRequest if it is a document
	Sandbox *farm.Sandbox // nil if its record or its document is gone
	Cancel  bool          // a cancel was requested before

	request string // stored value that refers to documents; empty: it does not
}

// Claim gives a job to a worker. A queued job becomes running, under attempt 1. A running job is given too if it is this worker's, or if
// its worker has no heartbeat any more: that is a takeover, which only raises the attempt. The end of an attempt whose worker claims the job
// again is no crash (Route.Uncounted). Any other job gives ErrNotClaimable, an unknown one CodeNotFound. A job of the FIFO makes its ready
// sandbox busy. A parked job that gets the slot of the claimed one is enqueued.
func (s *Store) Claim(ctx context.Context, ref farm.Ref, worker string) (*Claim, error) {
	r, err := s.Run(ctx, "claim job", "job_claim", ref.Tenant, ref.ID, worker, "")
	if err != nil {
		return nil, err
	}
	if r.Text(0) == "owned" {
		owner := r.Text(1)
		alive, err := s.nodes.Alive(ctx, owner)
		if err != nil {
			return nil, err
		}
		if alive {
			return nil, fmt.Errorf("claim job %s: worker %s runs it: %w", ref.ID, owner, db.ErrNotClaimable)
		}
		if r, err = s.Run(ctx, "take job over", "job_claim", ref.Tenant, ref.ID, worker, owner); err != nil {
			return nil, err
		}
	}
	switch r.Text(0) {
	case "ok":
		return s.decodeClaim(ctx, r)
	case "notfound":
		return nil, noJob(ref.ID)
	default:
		return nil, fmt.Errorf("claim job %s: it is %s %s: %w", ref.ID, r.Text(0), r.Text(1), db.ErrNotClaimable)
	}
}

// LoadRequest reads the request of a claim from the object store if it is there. It may be called again.
func (s *Store) LoadRequest(ctx context.Context, c *Claim) error {
	if c.Request != nil {
		return nil
	}
	request, err := s.readRequest(ctx, c.request)
	if farm.CodeOf(err) == farm.CodeNotFound {
		return farm.Wrap(err, farm.CodeInternal, "The request of the job is no longer in the object store. Send the job again.")
	}
	if err != nil {
		return fmt.Errorf("read request of job %s: %w", c.Job.ID, err)
	}
	c.Request = request
	return nil
}

// ForgetRequest drops a request that is a document, so that its memory becomes free, and reports whether it did. LoadRequest reads it again.
func (c *Claim) ForgetRequest() bool {
	if c.request == "" {
		return false
	}
	c.Request = nil
	return true
}

func (s *Store) decodeClaim(ctx context.Context, r db.Reply) (*Claim, error) {
	fields := r.Fields(1)
	job, err := decodeJob(fields)
	if err != nil {
		return nil, err
	}
	c := &Claim{Job: job, Cancel: fields["cancel"] == "1"}
	if request := r.Text(2); db.IsReference(request) {
		c.request = request
	} else if c.Request, err = decodeRequest(ctx, request); err != nil {
		return nil, err
	}
	if box := r.Fields(3); len(box) > 0 {
		if c.Sandbox, err = sandboxes.Known(ctx, s.DB, box); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Checkpoint stores a small state of a running job for the worker that may take it over; it is removed when the job ends. ErrFenced if the
// job no longer runs under this attempt.
func (s *Store) Checkpoint(ctx context.Context, ref farm.Ref, attempt int, data []byte) error {
	r, err := s.RunConfirmed(ctx, "write checkpoint", "job_checkpoint", ref.Tenant, ref.ID, attempt, data)
	if err != nil {
		return err
	}
	return fenced("write checkpoint", ref, r)
}

// LoadCheckpoint reads the last checkpoint of a job; nil if there is none.
func (s *Store) LoadCheckpoint(ctx context.Context, ref farm.Ref) ([]byte, error) {
	data, err := s.Redis.Get(ctx, s.Key(ref.Tenant, db.KeyCheckpoint, ref.ID)).Bytes()
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	return data, db.Wrap("read checkpoint", err)
}

// ErrCanceled says that a cancel of the job was requested.
var ErrCanceled = errors.New("job was canceled")

// noWorker is the worker of a running job without a worker. It never has a heartbeat, so any worker may claim the job.
const noWorker = "none"

// Requeue says how a job is given back. If only Attempt is set, it goes back to its queue.
type Requeue struct {
	Attempt int // that the job has: it runs under it, or is queued after it (0: it was never claimed)
	// Elsewhere takes the node away from the sandbox of a create or a run that is not ready: it begins anew on any node, as the next
	// generation. What was made for it before is not the sandbox's any more. A job of the node's own queue goes to the queue of all nodes.
	Elsewhere bool
	Begun     bool // the execution continues in the sandbox: the job stays running, without a worker, until one claims it and attaches to it
	Crashed   bool // the attempt ended with its worker, so it counts as a crash, see Route.Uncounted
}

// requeueArgs are the arguments of job_requeue.lua.
type requeueArgs struct {
	ID        string `lua:"id"`
	Attempt   int    `lua:"attempt"`
	Elsewhere bool   `lua:"elsewhere"`
	Begun     bool   `lua:"begun"`
	Crashed   bool   `lua:"crashed"`
	NoWorker  string `lua:"no_worker"` // the name that means no worker
}

// Requeue gives a job back that its worker cannot start, does not finish, or has left. The job keeps its place in its sandbox's FIFO. The attempt
// still fences, but does not count as a crash unless r says so. The job is enqueued in the same step. A repeated call changes nothing.
//
// Errors: ErrFenced if the job does not have this attempt, or has ended; ErrMove if Elsewhere is set and the sandbox is ready, closing or final;
// ErrCanceled if a cancel was requested: then the job keeps running under this attempt, and the caller ends it (its sandbox has left its
// node all the same). With Begun a cancel is left to the next worker, which ends the execution.
func (s *Store) Requeue(ctx context.Context, ref farm.Ref, r Requeue) error {
	got, err := s.Run(ctx, "requeue job", "job_requeue", ref.Tenant, requeueArgs{
		ID: ref.ID, Attempt: r.Attempt, Elsewhere: r.Elsewhere, Begun: r.Begun, Crashed: r.Crashed, NoWorker: noWorker,
	})
	if err != nil {
		return err
	}
	switch got.Text(0) {
	case "canceled":
		return fmt.Errorf("requeue job %s: %w", ref.ID, ErrCanceled)
	case "state":
		return farm.Wrap(db.ErrMove, farm.CodeConflict, "The sandbox of job %s is %s: it can no longer be created on another node.", ref.ID, got.Text(1))
	}
	return fenced("requeue", ref, got)
}

// Enqueue puts the task of an unfinished job that should have one into its queue, unless it waits there or the job has another attempt by now.
// An archived task is replaced. active: nothing was enqueued, since a server of the queue has the task; more is how many further tasks the job
// may get then, each while servers have all before it.
func (s *Store) Enqueue(ctx context.Context, ref farm.Ref, attempt, more int) (enqueued, active bool, err error) {
	r, err := s.Run(ctx, "enqueue job", "job_enqueue", ref.Tenant, ref.ID, attempt, more)
	if err != nil {
		return false, false, err
	}
	return r.Text(1) == "1", r.Text(2) == "1", nil
}

// LeaveFIFO takes a running background command out of its sandbox's FIFO: no job waits for it, and it does not count as use of the sandbox.
// The new head is enqueued. A repeated call changes nothing.
func (s *Store) LeaveFIFO(ctx context.Context, ref farm.Ref, attempt int) error {
	r, err := s.Run(ctx, "leave FIFO", "job_leave_fifo", ref.Tenant, ref.ID, attempt)
	if err != nil {
		return err
	}
	return fenced("leave FIFO", ref, r)
}

// fenced reads the reply of a script that only the job's current attempt may run.
func fenced(what string, ref farm.Ref, r db.Reply) error {
	switch r.Text(0) {
	case "ok":
		return nil
	case "notfound":
		return noJob(ref.ID)
	default:
		return fmt.Errorf("%s of job %s: %w", what, ref.ID, db.ErrFenced)
	}
}

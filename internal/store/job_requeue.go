package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/sandfarm/sandfarm/internal/farm"
)

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
	switch got.text(0) {
	case "canceled":
		return fmt.Errorf("requeue job %s: %w", ref.ID, ErrCanceled)
	case "state":
		return farm.Wrap(ErrMove, farm.CodeConflict, "The sandbox of job %s is %s: it can no longer be created on another node.", ref.ID, got.text(1))
	}
	return fenced("requeue", ref, got)
}

package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// closePatience is how long running jobs of a sandbox that is closed have to end in good order, their output so far kept.
const closePatience = 4 * time.Second

// close ends a sandbox: what waits in it and what runs in it is cancelled, then the container goes.
func (w *Worker) close(ctx context.Context, r *run) (verdict, error) {
	end, reason := farm.SandboxClosed, ""
	if r.Request.Close != nil {
		reason = r.Request.Close.Reason
		if r.Request.Close.Expired {
			end = farm.SandboxExpired
		}
	}
	if err := w.dismantle(ctx, r.Sandbox, r.Job.ID, end, reason); err != nil {
		return verdict{}, err
	}
	return verdict{state: farm.JobCompleted}, nil
}

// closedUnder is what jobs are told whose sandbox was closed.
const closedUnder = "The sandbox was closed while the job waited or ran."

// underClose is the error of a job whose sandbox was closed.
func underClose() *farm.JobError {
	return &farm.JobError{Code: farm.CodeConflict, Message: closedUnder}
}

// canceled is the end of a job that was to be cancelled. Its caller is told where the close of the sandbox did it.
func (w *Worker) canceled(ctx context.Context, s *farm.Sandbox) verdict {
	v := verdict{state: farm.JobCanceled}
	if s != nil && w.closing(ctx, s) {
		v.err = underClose()
	}
	return v
}

// closing reports whether a sandbox is being closed, or was.
func (w *Worker) closing(ctx context.Context, s *farm.Sandbox) bool {
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer done()
	now, err := w.store.Sandbox(ctx, ref(s))
	return err == nil && (now.State == farm.SandboxClosing || now.State == farm.SandboxClosed || now.State == farm.SandboxExpired)
}

// dismantle ends a sandbox whose record says closing. But is the job that closes it.
func (w *Worker) dismantle(ctx context.Context, s *farm.Sandbox, but string, end farm.SandboxState, reason string) error {
	open, err := w.openJobs(ctx, s)
	if err != nil {
		return err
	}
	open = slices.DeleteFunc(open, func(j *farm.Job) bool { return j.ID == but || j.Kind == farm.KindClose })
	// The last in line first, so that none of them gets its turn while the ones before it are cancelled.
	for _, job := range slices.Backward(open) {
		if _, err := w.dispatch.CancelFor(ctx, job.Ref(), underClose()); err != nil {
			w.log.WarnContext(ctx, "job was not cancelled in good order", "job_id", job.ID, "error", err)
		}
	}
	w.awaitEnd(ctx, open)
	w.links.drop(s.ID)
	if err := w.engine.Remove(ctx, w.containerOf(s)); err != nil {
		return fmt.Errorf("remove container: %w", err)
	}
	w.leaveGPUs(ctx, s)
	w.endJobs(ctx, s, but, farm.JobCanceled, closedUnder)
	_, err = w.store.MoveSandbox(ctx, store.Move{Ref: ref(s), To: end, Reason: reason})
	if err != nil && !errors.Is(err, store.ErrMove) {
		return fmt.Errorf("record the end: %w", err)
	}
	w.leaveRoom(ctx, ref(s))
	w.forgetMember(ctx, s)
	w.log.InfoContext(ctx, "sandbox closed", "sandbox_id", s.ID, "tenant", s.Tenant, "state", end)
	return nil
}

// awaitEnd waits a moment for cancelled jobs to end with what they have.
func (w *Worker) awaitEnd(ctx context.Context, open []*farm.Job) {
	ctx, done := context.WithTimeout(ctx, closePatience)
	defer done()
	for _, job := range open {
		watch, err := w.store.Watch(ctx, job.ID)
		if err != nil {
			return
		}
		for ctx.Err() == nil {
			if j, err := w.store.Job(ctx, job.Ref()); err != nil || j.State.Final() {
				break
			}
			select {
			case <-watch.C():
			case <-ctx.Done():
			}
		}
		watch.Close()
	}
}

// lose records that a sandbox has gone without being closed, and ends its jobs but one. One that is being closed is left
// to its close job.
func (w *Worker) lose(ctx context.Context, s *farm.Sandbox, but, reason string) {
	if !w.tellLost(ctx, s, but, reason) {
		return
	}
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer done()
	if err := w.engine.Remove(ctx, w.containerOf(s)); err != nil {
		w.log.WarnContext(ctx, "container of a lost sandbox is left to the reconciler", "sandbox_id", s.ID, "error", err)
	} else {
		w.leaveGPUs(ctx, s)
	}
	w.leaveRoom(ctx, ref(s))
	w.forgetMember(ctx, s)
}

// tellLost is lose without the engine: the record and the jobs. It reports whether the sandbox is lost now.
func (w *Worker) tellLost(ctx context.Context, s *farm.Sandbox, but, reason string) bool {
	if w.closing(ctx, s) || w.overdue(ctx, s) {
		return false
	}
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer done()
	_, err := w.store.MoveSandbox(ctx, store.Move{Ref: ref(s), To: farm.SandboxLost, Reason: reason})
	if err != nil && !errors.Is(err, store.ErrMove) {
		w.log.WarnContext(ctx, "lost sandbox was not recorded", "sandbox_id", s.ID, "error", err)
		return false
	}
	if err == nil {
		w.log.WarnContext(ctx, "sandbox lost", "sandbox_id", s.ID, "tenant", s.Tenant, "reason", reason)
	}
	w.links.drop(s.ID)
	w.endJobs(ctx, s, but, farm.JobLost, "The sandbox was lost: "+reason+". Create a new one and send the job again.")
	return true
}

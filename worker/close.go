package worker

import (
	"context"
	"errors"
	"fmt"
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

// dismantle ends a sandbox whose record says closing.
func (w *Worker) dismantle(ctx context.Context, s *farm.Sandbox, but string, end farm.SandboxState, reason string) error {
	open, err := w.store.Drain(ctx, ref(s))
	if err != nil {
		return fmt.Errorf("list open jobs: %w", err)
	}
	// The last in line first, so that none of them gets its turn while the ones before it are cancelled.
	for i := len(open) - 1; i >= 0; i-- {
		if open[i].ID == but {
			continue
		}
		if _, err := w.dispatch.Cancel(ctx, open[i]); err != nil {
			w.log.WarnContext(ctx, "job was not cancelled in good order", "job_id", open[i].ID, "error", err)
		}
	}
	w.awaitEnd(ctx, open, but)
	w.links.drop(s.ID)
	if err := w.engine.Remove(ctx, w.containerOf(s)); err != nil {
		return fmt.Errorf("remove container: %w", err)
	}
	w.endJobs(ctx, s, but, farm.JobCanceled, "The sandbox was closed while the job waited or ran.")
	_, err = w.store.MoveSandbox(ctx, store.Move{Ref: ref(s), To: end, Reason: reason})
	if err != nil && !errors.Is(err, store.ErrMove) {
		return fmt.Errorf("record the end: %w", err)
	}
	w.log.InfoContext(ctx, "sandbox closed", "sandbox_id", s.ID, "tenant", s.Tenant, "state", end)
	return nil
}

// awaitEnd waits a moment for cancelled jobs to end with what they have.
func (w *Worker) awaitEnd(ctx context.Context, open []farm.Ref, but string) {
	ctx, done := context.WithTimeout(ctx, closePatience)
	defer done()
	for _, job := range open {
		if job.ID == but {
			continue
		}
		watch, err := w.store.Watch(ctx, job.ID)
		if err != nil {
			return
		}
		for ctx.Err() == nil {
			if j, err := w.store.Job(ctx, job); err != nil || j.State.Final() {
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

// lose records that a sandbox has gone without being closed, and ends its jobs.
func (w *Worker) lose(ctx context.Context, s *farm.Sandbox, reason string) {
	if s == nil {
		return
	}
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer done()
	_, err := w.store.MoveSandbox(ctx, store.Move{Ref: ref(s), To: farm.SandboxLost, Reason: reason})
	if err != nil && !errors.Is(err, store.ErrMove) {
		w.log.WarnContext(ctx, "lost sandbox was not recorded", "sandbox_id", s.ID, "error", err)
		return
	}
	if err == nil {
		w.log.WarnContext(ctx, "sandbox lost", "sandbox_id", s.ID, "tenant", s.Tenant, "reason", reason)
	}
	w.links.drop(s.ID)
	if err := w.engine.Remove(ctx, w.containerOf(s)); err != nil {
		w.log.WarnContext(ctx, "container of a lost sandbox is left to the reconciler", "sandbox_id", s.ID, "error", err)
	}
	w.endJobs(ctx, s, "", farm.JobLost, "The sandbox was lost: "+reason+". Create a new one and send the job again.")
}

package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/sandfarm/sandfarm/internal/dispatch"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/worker/execution"
	"github.com/sandfarm/sandfarm/worker/node"
	"github.com/sandfarm/sandfarm/worker/placement"
	"github.com/sandfarm/sandfarm/worker/retry"
)

// closeGrace is how long the cancelled jobs of a sandbox that is closed may take to end, so that their output is kept.
const closeGrace = 4 * time.Second

// lifecycle ends sandboxes: it closes them, or marks them as lost. Packages execution and reconcile use it, too.
type lifecycle struct {
	usage     *node.Sampler
	store     *store.Store
	dispatch  *dispatch.Dispatcher
	engine    node.Engine
	node      *node.Node
	placement *placement.Placer
	log       *slog.Logger
	now       func() time.Time
}

// Closing reports whether a sandbox is being closed, or was.
func (l *lifecycle) Closing(ctx context.Context, s *farm.Sandbox) bool {
	now, err := l.read(ctx, s)
	return err == nil && (now.State == farm.SandboxClosing || now.State == farm.SandboxClosed || now.State == farm.SandboxExpired)
}

// hibernated reports whether a sandbox hibernates, or is about to.
func (l *lifecycle) hibernated(ctx context.Context, s *farm.Sandbox) bool {
	now, err := l.read(ctx, s)
	return err == nil && now.State == farm.SandboxHibernated
}

// read reads the record of a sandbox. How its jobs end depends on it, so it waits for Redis until ctx ends.
func (l *lifecycle) read(ctx context.Context, s *farm.Sandbox) (now *farm.Sandbox, err error) {
	if ctx.Err() != nil {
		var done context.CancelFunc
		ctx, done = retry.Detached(ctx)
		defer done()
	}
	err = retry.Writes{}.Do(ctx, func(ctx context.Context) (err error) {
		now, err = l.store.Sandbox(ctx, s.Ref())
		return err
	})
	return now, err
}

// closeExpired marks a sandbox as closing if it is past its deadline, and reports whether it did. The agent of such a sandbox has
// ended it, so it is expired, not lost. The reconciler removes what is left of it.
func (l *lifecycle) closeExpired(ctx context.Context, s *farm.Sandbox) bool {
	now, err := l.read(ctx, s)
	if err != nil || l.now().Before(now.ExpiresAt) {
		return false
	}
	ctx, done := retry.Detached(ctx)
	defer done()
	_, err = l.store.MoveSandbox(ctx, store.Move{Ref: s.Ref(), To: farm.SandboxClosing, Reason: "Its time was up.", Expired: true, Generation: s.Generation})
	return err == nil
}

// Dismantle ends a sandbox whose record says closing: its jobs but exceptJob, its container, its reservations and its record.
func (l *lifecycle) Dismantle(ctx context.Context, s *farm.Sandbox, exceptJob string, end farm.SandboxState, reason string) error {
	open, err := l.store.SandboxRoutes(ctx, s.Ref())
	if err != nil {
		return err
	}
	open = slices.DeleteFunc(open, func(j store.Route) bool { return j.Ref.ID == exceptJob || j.Kind == farm.KindClose })
	// The last of the FIFO first, so that none becomes the head while those before it are cancelled.
	for _, job := range slices.Backward(open) {
		if _, err := l.dispatch.CancelFor(ctx, job.Ref, execution.ClosedError()); err != nil {
			l.log.WarnContext(ctx, "job of a closing sandbox was not cancelled; it is ended without its output", "job_id", job.Ref.ID, "error", err)
		}
	}
	l.awaitEnd(ctx, open)
	l.usage.Sample(ctx, s) // the last one: its counters end with the container
	l.node.Disconnect(s.ID)
	if err := l.engine.Remove(ctx, l.node.Container(s)); err != nil {
		return fmt.Errorf("remove container: %w", err)
	}
	l.placement.ReleaseGPUs(ctx, s)
	l.endJobs(ctx, s, exceptJob, farm.JobCanceled, execution.ClosedMessage)
	_, err = l.store.MoveSandbox(ctx, store.Move{Ref: s.Ref(), To: end, Reason: reason, Removed: true, Generation: s.Generation})
	switch {
	case errors.Is(err, store.ErrMove): // it was marked as lost meanwhile
		l.gone(ctx, s)
	case err != nil:
		return fmt.Errorf("record the end: %w", err)
	}
	l.placement.Release(ctx, s)
	l.log.InfoContext(ctx, "sandbox closed", "sandbox_id", s.ID, "tenant", s.Tenant, "state", end)
	return nil
}

// awaitEnd waits up to closeGrace for cancelled jobs to end with their output.
func (l *lifecycle) awaitEnd(ctx context.Context, open []store.Route) {
	ctx, done := context.WithTimeout(ctx, closeGrace)
	defer done()
	for _, job := range open {
		watch, err := l.store.Watch(ctx, job.Ref.ID)
		if err != nil {
			return
		}
		watch.OnlyEnd()
		for ctx.Err() == nil {
			if j, err := l.store.Job(ctx, job.Ref); err != nil || j.State.Final() {
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

// Lose marks a sandbox as lost that ended without a close, ends its jobs but exceptJob, and removes what is left of it. A sandbox
// that is being closed is left to its close job.
func (l *lifecycle) Lose(ctx context.Context, s *farm.Sandbox, exceptJob, reason string) {
	if l.Closing(ctx, s) || l.closeExpired(ctx, s) {
		return
	}
	ctx, done := retry.Detached(ctx)
	defer done()
	_, err := l.store.MoveSandbox(ctx, store.Move{Ref: s.Ref(), To: farm.SandboxLost, Reason: reason, Generation: s.Generation})
	if errors.Is(err, store.ErrFenced) {
		return // its create began anew elsewhere: this is the sandbox that it was
	}
	if err != nil && !errors.Is(err, store.ErrMove) {
		l.log.WarnContext(ctx, "sandbox was not marked as lost", "sandbox_id", s.ID, "error", err)
		return
	}
	if err == nil {
		l.log.WarnContext(ctx, "sandbox lost", "sandbox_id", s.ID, "tenant", s.Tenant, "reason", reason)
	}
	l.node.Disconnect(s.ID)
	l.endJobs(ctx, s, exceptJob, farm.JobLost, "The sandbox was lost: "+reason+". Create a new one and send the job again.")
	if err := l.engine.Remove(ctx, l.node.Container(s)); err != nil {
		l.log.WarnContext(ctx, "container of a lost sandbox is left to the reconciler", "sandbox_id", s.ID, "error", err)
	} else {
		l.gone(ctx, s)
		l.placement.ReleaseGPUs(ctx, s)
	}
	l.placement.Release(ctx, s)
}

// gone notes that the container of a sandbox that has ended is gone: its record is kept no longer than others, and may be removed early.
func (l *lifecycle) gone(ctx context.Context, s *farm.Sandbox) {
	_, err := l.store.MoveSandbox(ctx, store.Move{Ref: s.Ref(), Removed: true, Generation: s.Generation})
	if err != nil && farm.CodeOf(err) != farm.CodeNotFound && !errors.Is(err, store.ErrFenced) {
		l.log.WarnContext(ctx, "the record of a sandbox without a container is kept until its deadline", "sandbox_id", s.ID, "error", err)
	}
}

// endJobs ends every open job of a sandbox but exceptJob and jobs that close it.
func (l *lifecycle) endJobs(ctx context.Context, s *farm.Sandbox, exceptJob string, state farm.JobState, message string) {
	jobs, err := l.store.SandboxRoutes(ctx, s.Ref())
	if err != nil {
		l.log.WarnContext(ctx, "open jobs of a sandbox are left to the sweep", "sandbox_id", s.ID, "error", err)
		return
	}
	for _, job := range jobs {
		if job.Ref.ID == exceptJob || job.Kind == farm.KindClose {
			continue
		}
		if err := l.dispatch.Force(ctx, job.Ref, state, &farm.JobError{Code: farm.CodeConflict, Message: message}); err != nil {
			l.log.WarnContext(ctx, "open job of a sandbox is left to the sweep", "job_id", job.Ref.ID, "error", err)
		}
	}
}

// close is the handler of close jobs: what waits and runs in the sandbox is cancelled, then the container is removed.
func (w *Worker) close(ctx context.Context, j *activeJob) (execution.Outcome, error) {
	end, reason := farm.SandboxClosed, ""
	if j.Request.Close != nil {
		reason = j.Request.Close.Reason
		if j.Request.Close.Expired {
			end = farm.SandboxExpired
		}
	}
	if err := w.lifecycle.Dismantle(ctx, j.Sandbox, j.Job.ID, end, reason); err != nil {
		return execution.Outcome{}, err
	}
	return execution.Outcome{State: farm.JobCompleted}, nil
}

package worker

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/dispatch"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/worker/execution"
	"github.com/sandfarm/sandfarm/worker/placement"
	"github.com/sandfarm/sandfarm/worker/retry"
)

// moveTimeout is how long the engine may be silent before starting sandboxes move to a node that has room: usually a restart of
// the engine takes less. While there is no such node, worker.engine_timeout applies.
const moveTimeout = 10 * time.Second

// errEngineSilent ends the start of a sandbox whose engine does not answer. The sandbox has not been handed to its owner yet, so
// nothing is lost: its create is requeued and continues wherever there is an engine.
var errEngineSilent = errors.New("the container engine does not answer")

// outage is what is known of an engine that does not answer.
type outage struct {
	mu     sync.Mutex
	since  time.Time // zero: the engine answers
	marked bool      // its sandboxes are marked as lost
}

// note takes the result of a ping, and reports whether the sandboxes of the engine are to be marked as lost now.
func (o *outage) note(up bool, now time.Time, timeout time.Duration) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case up:
		o.since, o.marked = time.Time{}, false
	case o.since.IsZero():
		o.since = now
	case !o.marked && now.Sub(o.since) >= timeout:
		o.marked = true
		return true
	}
	return false
}

// lasts is how long the engine has been silent.
func (o *outage) lasts(now time.Time) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since.IsZero() {
		return 0
	}
	return now.Sub(o.since)
}

// markAgain has the sandboxes marked as lost again after the next ping, because some could not be.
func (o *outage) markAgain() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.marked = false
}

// notePing follows a ping of the engine. While the engine does not answer, creates are paused and the node offers no capacity;
// when that lasts, its sandboxes are marked as lost, so that their owners do not wait, and starting ones move to another node.
func (w *Worker) notePing(ctx context.Context, up bool) error {
	w.placement.SetEngineDown(!up)
	if w.outage.note(up, w.now(), w.cfg.EngineTimeout) {
		w.background.Go(func() {
			if err := w.endSandboxes(w.base); err != nil && w.base.Err() == nil { //nolint:contextcheck // it outlives the heartbeat
				w.log.WarnContext(w.base, "not all sandboxes of the silent engine are marked as lost; it is tried again", "error", err)
				w.outage.markAgain()
			}
		})
	}
	if up {
		return w.placement.RefreshCapacity(ctx)
	}
	otherHasRoom, err := w.placement.Withdraw(ctx)
	w.stopStarts(otherHasRoom)
	return err
}

// endSandboxes marks the sandboxes of the silent engine as lost, with their jobs. What is left on the engine is removed when it answers again.
func (w *Worker) endSandboxes(ctx context.Context) error {
	out, err := w.dispatch.EndNode(ctx, dispatch.NodeEnd{Node: w.node.ID(), Reason: "the container engine of its node does not answer", WorkerLives: true, Gone: w.engineSilent})
	for _, s := range out.Lost {
		w.node.Disconnect(s.ID)
	}
	return err
}

// engineSilent reports whether the engine still does not answer.
func (w *Worker) engineSilent(context.Context) (bool, error) { return w.outage.lasts(w.now()) > 0, nil }

// stopStarts ends the starts of sandboxes once the engine has been silent for too long.
func (w *Worker) stopStarts(otherHasRoom bool) {
	timeout := w.cfg.EngineTimeout
	if otherHasRoom {
		timeout = min(timeout, moveTimeout)
	}
	if w.outage.lasts(w.now()) < timeout {
		return
	}
	for _, j := range w.jobs.all() {
		j.stopStart(errEngineSilent)
	}
}

// errNoRoom ends the start of a sandbox for which an engine that places containers itself has no room. Its reason wraps it.
var errNoRoom = errors.New("the engine has no room")

// noRoom marks the error of a start as errNoRoom if the engine had no room for as long as a start may take; otherwise it returns cause.
func noRoom(ctx context.Context, cause, err error) error {
	if farm.CodeOf(err) != farm.CodeExhausted || ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return cause
	}
	return farm.Wrap(errors.Join(errNoRoom, err), farm.CodeExhausted, "%s", farm.MessageOf(err))
}

// requeueFull requeues a create for which its engine has no room, with the reason, so that any node may take it. What the engine has of it is
// removed first: it waits there as well.
func (w *Worker) requeueFull(ctx context.Context, j *activeJob, reason error) error {
	w.placement.PauseCreates(j.Job.Queue)
	w.executions.Progress(ctx, j.Job, farm.MessageOf(reason)+" The sandbox waits for room.")
	w.node.Disconnect(j.Sandbox.ID)
	if err := w.engine.Remove(ctx, w.engine.Name(j.Sandbox.ID)); err != nil {
		w.log.WarnContext(ctx, "container of a requeued create is left to the next one", "sandbox_id", j.Sandbox.ID, "error", err)
	}
	w.placement.Release(ctx, j.Sandbox)
	requeued, err := w.requeue(ctx, j, store.Requeue{Elsewhere: true})
	if errors.Is(err, store.ErrFenced) {
		return nil
	}
	if requeued {
		w.metrics.requeued.Inc()
		w.log.InfoContext(ctx, "the engine has no room for a sandbox; its create is requeued", "job_id", j.Job.ID, "sandbox_id", j.Job.SandboxID, "reason", reason)
	}
	return retry.Cause(ctx, err)
}

// engineDied reports whether the start of a sandbox failed because the engine does not answer.
func (w *Worker) engineDied(ctx context.Context, j *activeJob, err error) bool {
	if !placement.StartsSandbox(j.Claim) || errors.Is(err, execution.ErrCanceled) || j.task().Canceled() {
		return false
	}
	if errors.Is(err, errEngineSilent) {
		return true
	}
	ctx, done := context.WithTimeout(ctx, pingTimeout)
	defer done()
	return w.engine.Ping(ctx) != nil
}

// moveCreate requeues a create whose engine does not answer, so that any node may take it. The deadline of its sandbox stays. What
// is left on the engine is removed by the reconciler once the engine answers; until then the sandbox's GPUs stay leased, since a
// device may still be in use.
func (w *Worker) moveCreate(ctx context.Context, j *activeJob) error {
	w.placement.SetEngineDown(true) // until the next ping, so that this worker does not take the create again at once
	w.executions.Progress(ctx, j.Job, "the container engine of the sandbox's node does not answer; the sandbox is started on another node, or here when the engine is back")
	requeued, err := w.requeue(ctx, j, store.Requeue{Elsewhere: true})
	if errors.Is(err, store.ErrFenced) {
		return nil
	}
	if err != nil {
		return retry.Cause(ctx, err)
	}
	w.releaseWithoutEngine(ctx, j)
	if requeued {
		w.metrics.moved.Inc()
		w.log.WarnContext(ctx, "the engine does not answer; the create of a sandbox is requeued", "job_id", j.Job.ID, "sandbox_id", j.Job.SandboxID)
	}
	return nil
}

// releaseWithoutEngine releases what a create that moves to another node has reserved here.
func (w *Worker) releaseWithoutEngine(ctx context.Context, j *activeJob) {
	ctx, done := retry.Detached(ctx)
	defer done()
	w.node.Disconnect(j.Sandbox.ID)
	if err := w.placement.ReleaseWithoutEngine(ctx, j.Sandbox); err != nil {
		w.log.WarnContext(ctx, "reservations of a moved create are left to the reconciler", "sandbox_id", j.Sandbox.ID, "error", err)
	}
}

// cleanUpFenced removes what this worker started for a create that another attempt has now. If the create continues on another
// node, or has ended, this engine must not keep the sandbox; on this node the other attempt uses the existing container.
func (w *Worker) cleanUpFenced(ctx context.Context, j *activeJob) {
	ctx, done := retry.Detached(ctx)
	defer done()
	s, err := w.store.Sandbox(ctx, j.Sandbox.Ref())
	if err != nil || !s.State.Final() && (s.Node == w.node.ID() || s.Node == "") {
		return // the reconciler decides
	}
	w.releaseWithoutEngine(ctx, j)
	if err := w.engine.Remove(ctx, w.engine.Name(j.Sandbox.ID)); err != nil {
		w.log.WarnContext(ctx, "container of a sandbox on another node is left to the reconciler", "sandbox_id", j.Sandbox.ID, "error", err)
	}
}

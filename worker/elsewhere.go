package worker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// movePatience is how long the engine may be silent before what it starts is sent to a node that has room: a restart of the
// engine is over by then, as a rule. While there is no such node it may be silent for worker.engine_patience.
const movePatience = 10 * time.Second

// labelAttempt names the attempt of its creation that made a container. Where the creation went on elsewhere, what the attempts
// before made is nobody's (farm.Sandbox.Void).
const labelAttempt = "sandfarm.attempt"

// errSilent ends the start of a sandbox whose engine does not answer. Nobody has the sandbox yet, so nothing is lost: its
// creation goes back to its queue, and on wherever there is an engine.
var errSilent = errors.New("the container engine does not answer")

// void reports whether a container was made by an attempt that its sandbox's creation left behind.
func void(c engine.Container, s *farm.Sandbox) bool {
	attempt, _ := strconv.Atoi(c.Labels[labelAttempt]) // members of the pool have none
	return s.Void > 0 && attempt <= s.Void
}

// clearVoid removes what an attempt that was left behind made of a sandbox on this engine: it would be taken for this attempt's.
func (w *Worker) clearVoid(ctx context.Context, s *farm.Sandbox) error {
	if s.Void == 0 {
		return nil
	}
	c, err := w.engine.Inspect(ctx, w.engine.Name(s.ID))
	switch {
	case farm.CodeOf(err) == farm.CodeNotFound:
		return nil
	case err != nil:
		return fmt.Errorf("look for an earlier container: %w", err)
	case !void(c, s):
		return nil
	}
	w.log.InfoContext(ctx, "container of an earlier attempt is removed", "sandbox_id", s.ID)
	return w.engine.Remove(ctx, c.ID)
}

// stopStarts ends what this worker starts on its engine once that has been silent for too long. nodes are the rooms of all nodes.
func (w *Worker) stopStarts(nodes map[string]store.NodeCapacity) {
	patience := w.cfg.EnginePatience
	if w.room.elsewhere(nodes) {
		patience = min(patience, movePatience)
	}
	if w.silent.lasts(w.now()) < patience {
		return
	}
	for _, r := range w.runs.all() {
		r.stopStart(errSilent)
	}
}

// elsewhere reports whether another node has room for the smallest sandbox.
func (r *room) elsewhere(nodes map[string]store.NodeCapacity) bool {
	for name, other := range nodes {
		if name != r.node && other.Reserved.Plus(r.smallest).Within(other.Capacity) {
			return true
		}
	}
	return false
}

// engineDied reports whether the start of a sandbox came to nothing because the engine does not answer.
func (w *Worker) engineDied(ctx context.Context, r *run, err error) bool {
	if !fresh(r) || errors.Is(err, errCanceled) || r.canceled() {
		return false
	}
	if errors.Is(err, errSilent) {
		return true
	}
	ctx, done := context.WithTimeout(ctx, engineLook)
	defer done()
	return w.engine.Ping(ctx) != nil
}

// sendElsewhere returns a creation that did not succeed, since the engine is silent, to where any node may take it. It keeps its
// deadline: that of its sandbox. What is left on the engine is removed by the reconciler once that answers, and so are the
// leases of its GPUs returned: before, a device may still be in use.
func (w *Worker) sendElsewhere(ctx context.Context, r *run) error {
	w.room.mu.Lock()
	w.room.down = true // until the next look: it is not to come back to this worker at once
	w.room.mu.Unlock()
	queue := r.Job.Queue
	if queue == farm.NodeQueue(w.node) { // it claimed a member of the pool
		queue = farm.QueueCPU
	}
	err := w.persist(ctx, func(ctx context.Context) error { return w.store.UnassignNode(ctx, r.Job.Ref(), r.Job.Attempt, queue) })
	switch {
	case errors.Is(err, store.ErrMove): // it is closed meanwhile
		_, err = w.finish(ctx, r, verdict{state: farm.JobCanceled, err: underClose()})
		return err
	case errors.Is(err, store.ErrFenced):
		return nil
	case err != nil:
		return causeOr(ctx, err)
	}
	w.leaveBehind(ctx, r)
	w.progress(ctx, r, "the container engine of the sandbox's node does not answer; the sandbox is started on another one, or when it is back")
	returned, err := w.release(ctx, r)
	if returned {
		w.seen.moved.Inc()
		w.log.WarnContext(ctx, "the engine does not answer; the creation of a sandbox goes back to its queue", "job_id", r.Job.ID, "sandbox_id", r.Job.SandboxID)
	}
	return err
}

// leaveBehind gives back what a creation that goes on elsewhere has of this node, but for what only the engine can tell.
func (w *Worker) leaveBehind(ctx context.Context, r *run) {
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer done()
	w.links.drop(r.Sandbox.ID)
	w.gpus.forget(r.Sandbox.ID)
	_, err := w.store.Unreserve(ctx, w.node, farm.Capacity{}, ref(r.Sandbox)) // the silent node offers nothing
	if err == nil && r.Sandbox.Pooled {
		_, err = w.dropMember(ctx, r.Sandbox.ID, store.MemberClaimed)
	}
	if err != nil {
		w.log.WarnContext(ctx, "what a creation had of this node is left to the reconciler", "sandbox_id", r.Sandbox.ID, "error", err)
	}
}

// fencedStart tidies up after a start whose job is another attempt's now. Where that goes on elsewhere, or has ended, this
// engine is not to keep the sandbox; on this node it goes on with what is there.
func (w *Worker) fencedStart(ctx context.Context, r *run) {
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer done()
	s, err := w.store.Sandbox(ctx, ref(r.Sandbox))
	if err != nil || !s.State.Final() && (s.Node == w.node || s.Node == "") {
		return // the reconciler looks again
	}
	w.leaveBehind(ctx, r)
	if err := w.engine.Remove(ctx, w.engine.Name(r.Sandbox.ID)); err != nil {
		w.log.WarnContext(ctx, "container of a sandbox that is elsewhere is left to the reconciler", "sandbox_id", r.Sandbox.ID, "error", err)
	}
}

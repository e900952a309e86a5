package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/telemetry"
	"github.com/sandfarm/sandfarm/worker/node"
	"github.com/sandfarm/sandfarm/worker/placement"
)

// reconciler brings the containers of this worker's engine and the records together, at the start and on a timer: orphaned
// containers are removed, sandboxes whose container is gone are marked as lost, sandboxes whose records were lost are restored,
// and reservations, leases and the warm pool are corrected.
type reconciler struct {
	store     *store.Store
	engine    node.Engine
	node      *node.Node
	placement *placement.Placer
	lifecycle *lifecycle
	usage     *node.Sampler
	log       *slog.Logger
	now       func() time.Time
	contained prometheus.Gauge
}

// newReconciler makes the reconciler of a worker, whose other parts are made.
func newReconciler(w *Worker) (*reconciler, error) {
	r := &reconciler{
		store: w.store, engine: w.engine, node: w.node, placement: w.placement, lifecycle: w.lifecycle, usage: w.usage, log: w.log,
		now: func() time.Time { return w.now() },
		contained: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "sandfarm_worker_node_sandboxes", Help: "Containers of open sandboxes on the worker's node, at the last run of the reconciler.",
		}),
	}
	if w.deps.Metrics == nil {
		return r, nil
	}
	return r, telemetry.Register(w.deps.Metrics, r.contained)
}

// startingGrace is how long a sandbox may be starting without a job that starts it.
const startingGrace = 2 * time.Minute

// orphanTimeout bounds the removal of a container without a record.
const orphanTimeout = 10 * time.Second

// unreadFor is how long one run may try records that cannot be read. The containers that it has not looked at by then stay: documents in an object
// store that hangs must not hold up what needs none.
const unreadFor = 10 * time.Second

// Run brings the engine's containers and the records together: orphaned containers are removed, open sandboxes whose container
// is gone are marked as lost, and closing sandboxes that no job closes are closed. It changes nothing while Redis or the engine
// do not answer. An error with one sandbox does not stop the others; the errors are joined. A container whose record cannot be read stays.
func (r *reconciler) Run(ctx context.Context) error {
	pool, err := r.listNotes(ctx)
	if err != nil {
		return err
	}
	containers, err := r.engine.List(ctx)
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	if err := pool.readMembers(ctx, r.placement); err != nil {
		return err
	}
	var errs []error
	var unread time.Duration
	running, contained := map[string]bool{}, map[string]bool{}
	for _, c := range containers {
		id, keep := c.SandboxID, true
		if unread < unreadFor {
			began := r.now()
			if keep, err = r.keeps(ctx, pool, c); err != nil {
				errs, keep = append(errs, fmt.Errorf("look at the container of sandbox %s: %w", id, err)), true
				unread += r.now().Sub(began)
			}
		}
		if keep {
			running[id], contained[id] = c.Running, true
			continue
		}
		r.log.InfoContext(ctx, "orphaned container is removed", "sandbox_id", id)
		if err := r.remove(ctx, c.ID); err != nil {
			errs = append(errs, fmt.Errorf("remove container: %w", err))
		} else {
			r.lifecycle.gone(ctx, &farm.Sandbox{ID: id, Tenant: c.Tenant, Generation: c.Generation})
		}
	}
	r.contained.Set(float64(len(contained) - pool.idle))
	open, err := r.reconcileRecords(ctx, running, contained)
	r.node.SyncDeadlines(open, containers)
	r.usage.SampleAll(open)
	return errors.Join(append(errs, err, r.reconcilePool(ctx, pool, contained), r.placement.ReconcileReservations(ctx, open, contained), r.placement.ReconcileGPUs(ctx))...)
}

// remove removes a container. One that does not end at once is left to the next pass: this one has others to look after.
func (r *reconciler) remove(ctx context.Context, id string) error {
	ctx, done := context.WithTimeout(ctx, orphanTimeout)
	defer done()
	return r.engine.Remove(ctx, id)
}

// keeps reports whether a container stays.
func (r *reconciler) keeps(ctx context.Context, pool *poolView, c farm.Container) (bool, error) {
	if node.IsPoolMember(c) {
		return r.keepsMember(ctx, pool, c)
	}
	return r.keepsSandbox(ctx, c)
}

// keepsSandbox reports whether a container's sandbox is open. A sandbox whose record was lost, or is of an earlier generation, is restored. One whose
// record has lost its document is open.
func (r *reconciler) keepsSandbox(ctx context.Context, c farm.Container) (bool, error) {
	s, err := r.record(ctx, c)
	if errors.Is(err, store.ErrDocumentGone) {
		if err := r.restoreDocument(ctx, c); err != nil {
			r.log.WarnContext(ctx, "the document of a sandbox is not restored; it is tried again", "sandbox_id", c.SandboxID, "error", err)
		}
		return true, nil
	}
	if err != nil {
		return false, err
	}
	if s == nil || node.Newer(c, s) {
		return r.restore(ctx, c)
	}
	return isOpen(c, s), nil
}

// record reads the record of a container's sandbox; nil if there is none.
func (r *reconciler) record(ctx context.Context, c farm.Container) (*farm.Sandbox, error) {
	s, err := r.store.Sandbox(ctx, farm.Ref{Tenant: c.Tenant, ID: c.SandboxID})
	if farm.CodeOf(err) == farm.CodeNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read sandbox: %w", err)
	}
	return s, nil
}

// isOpen reports whether a container's sandbox is open and of the container's generation.
func isOpen(c farm.Container, s *farm.Sandbox) bool {
	return s != nil && !s.State.Final() && node.Belongs(c, s)
}

// reconcileRecords checks every open sandbox of this node, and returns those whose container runs. From contained it takes the hibernated
// ones, which have nothing reserved.
func (r *reconciler) reconcileRecords(ctx context.Context, running, contained map[string]bool) (here []*farm.Sandbox, err error) {
	open, err := r.store.OpenOnNode(ctx, r.node.ID())
	var errs []error
	if err != nil {
		errs = append(errs, fmt.Errorf("list open sandboxes of the node: %w", err))
	}
	for _, s := range open {
		if running[s.ID] {
			here = append(here, s)
		}
		if s.State == farm.SandboxHibernated {
			err = r.reconcileHibernated(ctx, s, running[s.ID], contained[s.ID])
			if !running[s.ID] {
				delete(contained, s.ID)
			}
		} else {
			err = r.reconcileRecord(ctx, s, running[s.ID])
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("reconcile sandbox %s: %w", s.ID, err))
		}
	}
	return here, errors.Join(errs...)
}

// reconcileRecord checks one open sandbox. Its record was read after the containers were listed, so the engine is asked again for a
// container that was not in the list.
func (r *reconciler) reconcileRecord(ctx context.Context, s *farm.Sandbox, running bool) error {
	switch {
	case s.Node != r.node.ID(): // it has moved
		return nil
	case s.State == farm.SandboxClosing:
		return r.finishClosing(ctx, s)
	case running:
		return nil
	case s.State == farm.SandboxReady, s.State == farm.SandboxBusy:
		if reason, ok := r.node.Gone(ctx, s); ok {
			r.lifecycle.Lose(ctx, s, "", reason.Error())
		}
	case s.State == farm.SandboxStarting && time.Since(s.CreatedAt) > startingGrace:
		pending, err := r.hasLifecycleJob(ctx, s)
		if err == nil && !pending {
			r.lifecycle.Lose(ctx, s, "", "its creation ended before it was ready")
		}
		return err
	}
	return nil
}

// finishClosing closes a sandbox whose close job failed, or whose one-shot job ended with its worker before the clean-up.
func (r *reconciler) finishClosing(ctx context.Context, s *farm.Sandbox) error {
	pending, err := r.hasLifecycleJob(ctx, s)
	if err != nil || pending {
		return err
	}
	end := farm.SandboxClosed
	if s.Expired {
		end = farm.SandboxExpired
	}
	return r.lifecycle.Dismantle(ctx, s, "", end, "")
}

// hasLifecycleJob reports whether a job that makes or closes the sandbox has not ended.
func (r *reconciler) hasLifecycleJob(ctx context.Context, s *farm.Sandbox) (bool, error) {
	return r.store.HasJob(ctx, s.Ref(), farm.KindCreate, farm.KindRun, farm.KindClose)
}

// restore writes the record of a container's sandbox again, if the records were lost, and reports whether the sandbox is open. Redis lost
// them if there is no record although the deadline of the sandbox has not passed: the record of a sandbox that ended without its container
// is kept until then (store.Move.Removed). So a Redis that was restored from an older snapshot is noticed like one that was wiped.
func (r *reconciler) restore(ctx context.Context, c farm.Container) (bool, error) {
	s := node.RecordOf(c)
	if s == nil || !r.now().Before(s.ExpiresAt) {
		return false, nil
	}
	if !c.Running {
		has, err := r.node.Checkpoints().HasCheckpoint(ctx, c.ID)
		if err != nil || !has {
			return false, ignoreNotFound(err)
		}
		s.State = farm.SandboxHibernated
	} else if _, gone := r.node.Gone(ctx, s); gone { // since the list: the sandbox was closed, and its record is kept for a short time only
		return false, nil
	}
	s.LastUsedAt = r.now()
	restored, err := r.store.RestoreSandbox(ctx, s)
	if err != nil {
		return false, fmt.Errorf("restore sandbox %s: %w", s.ID, err)
	}
	if restored {
		r.log.WarnContext(ctx, "Redis has lost the record of a sandbox; it is restored from the container", "sandbox_id", s.ID, "tenant", s.Tenant)
		return true, nil
	}
	now, err := r.record(ctx, c) // another worker of the engine was first, or the sandbox is being closed
	return isOpen(c, now), err
}

// restoreDocument writes the document of a sandbox's record again, if its container carries the record.
func (r *reconciler) restoreDocument(ctx context.Context, c farm.Container) error {
	s := node.RecordOf(c)
	if s == nil {
		return nil
	}
	if err := r.store.RestoreDocument(ctx, s); err != nil {
		return fmt.Errorf("restore the document of sandbox %s: %w", s.ID, err)
	}
	r.log.WarnContext(ctx, "the object store has lost the document of a sandbox; it is restored from the container", "sandbox_id", s.ID, "tenant", s.Tenant)
	return nil
}

// ignoreNotFound returns an error unless it says that a container is gone.
func ignoreNotFound(err error) error {
	if farm.CodeOf(err) == farm.CodeNotFound {
		return nil
	}
	return err
}

// reconcileHibernated checks a sandbox whose record says hibernated. While it has a job, that hibernates or resumes it, or is about to. Otherwise
// a container that runs is one whose hibernation or resume was not finished: it is ready. One that is gone is lost.
func (r *reconciler) reconcileHibernated(ctx context.Context, s *farm.Sandbox, running, contained bool) error {
	if s.Node != r.node.ID() || contained && !running {
		return nil
	}
	if has, err := r.store.HasJob(ctx, s.Ref()); err != nil || has {
		return err
	}
	// Only now: a job may have ended after the containers were listed.
	if reason, gone := r.node.Gone(ctx, s); gone {
		return r.loseHibernated(ctx, s, reason)
	}
	if !running {
		return nil
	}
	if err := r.node.Checkpoints().RemoveCheckpoint(ctx, r.node.Container(s)); err != nil { // it is older than what runs
		return fmt.Errorf("remove its checkpoint: %w", err)
	}
	_, err := r.store.MoveSandbox(ctx, store.Move{Ref: s.Ref(), To: farm.SandboxReady, Touch: true, Generation: s.Generation})
	if err != nil && !errors.Is(err, store.ErrMove) {
		return fmt.Errorf("record that it runs: %w", err)
	}
	if err := r.node.SendDeadline(ctx, s); err != nil {
		r.log.WarnContext(ctx, "agent does not know its deadline yet", "sandbox_id", s.ID, "error", err)
	}
	r.log.WarnContext(ctx, "sandbox runs though it was to be hibernated; it is ready again", "sandbox_id", s.ID)
	return nil
}

// loseHibernated marks a hibernated sandbox as lost that has nothing to resume from.
func (r *reconciler) loseHibernated(ctx context.Context, s *farm.Sandbox, reason error) error {
	has, err := r.node.Checkpoints().HasCheckpoint(ctx, r.node.Container(s))
	switch {
	case err != nil && farm.CodeOf(err) != farm.CodeNotFound:
		return fmt.Errorf("look for its checkpoint: %w", err)
	case !has:
		r.lifecycle.Lose(ctx, s, "", reason.Error())
	}
	return nil
}

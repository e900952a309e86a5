package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// startingPatience is how long a record may say starting without a job that starts it.
const startingPatience = 2 * time.Minute

// reconcile brings the engine's containers and the records together: containers of no open sandbox are removed, open
// sandboxes whose container is gone are lost, and closing ones that nobody closes are closed. It does nothing while Redis
// or the engine do not answer; what fails for one sandbox does not keep it from the others.
func (w *Worker) reconcile(ctx context.Context) error {
	view, err := w.notesFirst(ctx)
	if err != nil {
		return err
	}
	containers, err := w.engine.List(ctx)
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	if _, err := w.lookAtEpoch(ctx); err != nil {
		return err
	}
	if err := view.readMembers(ctx, w); err != nil {
		return err
	}
	var errs []error
	running, contained := map[string]bool{}, map[string]bool{}
	for _, c := range containers {
		id := c.SandboxID
		keep, err := w.keepsAny(ctx, view, c)
		if err != nil {
			return err
		}
		if keep {
			running[id], contained[id] = c.Running, true
			continue
		}
		w.log.InfoContext(ctx, "container of no open sandbox is removed", "sandbox_id", id)
		if err := w.engine.Remove(ctx, c.ID); err != nil {
			errs = append(errs, fmt.Errorf("remove container: %w", err))
		}
	}
	w.seen.contained.Set(float64(len(contained) - view.idle))
	open, err := w.reconcileRecords(ctx, running)
	w.tellDeadlines(open, containers)
	return errors.Join(append(errs, err, w.reconcilePool(ctx, view, contained), w.reconcileRoom(ctx, open, contained), w.reconcileGPUs(ctx))...)
}

// keepsAny reports whether a container stays.
func (w *Worker) keepsAny(ctx context.Context, v *poolView, c engine.Container) (bool, error) {
	if isMember(c) {
		return w.keepsMember(ctx, v, c)
	}
	return w.keeps(ctx, c)
}

// keeps reports whether a container's sandbox is open, taken back if need be.
func (w *Worker) keeps(ctx context.Context, c engine.Container) (bool, error) {
	keep, err := w.belongs(ctx, c)
	if err != nil || keep {
		return keep, err
	}
	return w.takeBack(ctx, c)
}

// belongs reports whether a container's sandbox is open, and the container still its own.
func (w *Worker) belongs(ctx context.Context, c engine.Container) (bool, error) {
	s, err := w.store.Sandbox(ctx, farm.Ref{Tenant: c.Tenant, ID: c.SandboxID})
	switch {
	case farm.CodeOf(err) == farm.CodeNotFound:
		return false, nil
	case err != nil:
		return false, fmt.Errorf("read sandbox: %w", err)
	}
	return !s.State.Final() && !void(c, s), nil
}

// reconcileRecords looks at every open sandbox, and gives those whose container runs here.
func (w *Worker) reconcileRecords(ctx context.Context, running map[string]bool) (here []*farm.Sandbox, err error) {
	err = w.eachOpen(ctx, func(s *farm.Sandbox) error {
		if s.Node == w.node && running[s.ID] {
			here = append(here, s)
		}
		if err := w.reconcileRecord(ctx, s, running[s.ID]); err != nil {
			return fmt.Errorf("reconcile sandbox %s: %w", s.ID, err)
		}
		return nil
	})
	return here, err
}

// eachOpen calls f for every open sandbox of every tenant, and joins what goes wrong.
func (w *Worker) eachOpen(ctx context.Context, f func(*farm.Sandbox) error) error {
	tenants, err := w.store.Tenants(ctx)
	if err != nil {
		return fmt.Errorf("list tenants: %w", err)
	}
	var errs []error
	for _, tenant := range tenants {
		open, err := w.store.OpenSandboxes(ctx, tenant)
		if err != nil {
			errs = append(errs, fmt.Errorf("list open sandboxes: %w", err))
			continue
		}
		for _, s := range open {
			errs = append(errs, f(s))
		}
	}
	return errors.Join(errs...)
}

// reconcileRecord looks at one open sandbox. Its record was read after the containers were listed, so a container that
// was not in the list is looked for again.
func (w *Worker) reconcileRecord(ctx context.Context, s *farm.Sandbox, running bool) error {
	mine := s.Node == w.node
	switch {
	case s.State == farm.SandboxClosing && (mine || s.Node == ""): // without a node there never was a container
		return w.finishClosing(ctx, s)
	case !mine || running:
		return nil
	case s.State == farm.SandboxReady, s.State == farm.SandboxBusy:
		if reason, ok := w.gone(ctx, s); ok {
			w.lose(ctx, s, "", reason.Error())
		}
	case s.State == farm.SandboxStarting && time.Since(s.CreatedAt) > startingPatience:
		held, err := w.inWork(ctx, s)
		if err == nil && !held {
			w.lose(ctx, s, "", "its creation ended before it was ready")
		}
		return err
	}
	return nil
}

// finishClosing closes a sandbox whose close job failed, or whose one-shot job ended with its worker before the clean-up.
func (w *Worker) finishClosing(ctx context.Context, s *farm.Sandbox) error {
	held, err := w.inWork(ctx, s)
	if err != nil || held {
		return err
	}
	end := farm.SandboxClosed
	if s.Expired {
		end = farm.SandboxExpired
	}
	return w.dismantle(ctx, s, "", end, "")
}

// inWork reports whether a job that makes or closes the sandbox has not ended.
func (w *Worker) inWork(ctx context.Context, s *farm.Sandbox) (bool, error) {
	open, err := w.openJobs(ctx, s)
	return slices.ContainsFunc(open, func(j *farm.Job) bool {
		return j.Kind == farm.KindCreate || j.Kind == farm.KindRun || j.Kind == farm.KindClose
	}), err
}

// openJobs gives the jobs of a sandbox that have not ended, in the order they were accepted.
func (w *Worker) openJobs(ctx context.Context, s *farm.Sandbox) ([]*farm.Job, error) {
	refs, err := w.store.UnfinishedJobs(ctx, ref(s))
	if err != nil {
		return nil, fmt.Errorf("list open jobs: %w", err)
	}
	jobs := make([]*farm.Job, 0, len(refs))
	for _, r := range refs {
		job, err := w.store.Job(ctx, r)
		if farm.CodeOf(err) == farm.CodeNotFound {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read open job: %w", err)
		}
		jobs = append(jobs, job)
	}
	return jobs, nil
}

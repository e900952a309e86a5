package worker

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// memberPatience is how long a member may take to answer. It idles, so it answers at once on a machine that is not drowned.
const memberPatience = 5 * time.Second

// errUnfit says that a member cannot serve the sandbox that has claimed it.
var errUnfit = errors.New("the member was made from something else")

// takeMember makes the member that a sandbox has claimed the sandbox's own: it gets the limits that were asked for, and the engine's
// note says whose it is. False when there is none that will do: then nothing of it is left, and the sandbox starts cold.
func (w *Worker) takeMember(ctx context.Context, s *farm.Sandbox) (container string, ok bool, err error) {
	m, err := w.store.Member(ctx, s.ID)
	switch {
	case errors.Is(err, store.ErrNoMember): // an earlier attempt went cold
	case err != nil:
		return "", false, err
	case m.Node == w.node && m.State == store.MemberClaimed && m.Tenant == s.Tenant:
		if err = w.handMember(ctx, s, m); err == nil {
			return m.Container, true, nil
		}
		if ctx.Err() != nil {
			return "", false, context.Cause(ctx)
		}
		w.seen.poolUnusable.Inc()
		w.log.WarnContext(ctx, "a sandbox of the warm pool could not be used; another one is started", "sandbox_id", s.ID, "error", err)
		if _, err := w.dropMember(ctx, s.ID, store.MemberClaimed); err != nil {
			return "", false, err
		}
	}
	w.links.drop(s.ID)
	return "", false, w.engine.Remove(ctx, w.engine.Name(s.ID)) // what has the sandbox's name must not be taken for it
}

// handMember checks a member, and sets its limits and its note. Each step may be done again.
func (w *Worker) handMember(ctx context.Context, s *farm.Sandbox, m *store.Member) error {
	ctx, done := context.WithTimeout(ctx, memberPatience)
	defer done()
	version, err := w.memberVersion(ctx, m.Image)
	if err != nil {
		return err
	}
	if m.Version != version || m.Resources.DiskMB != s.Spec.Resources.DiskMB || m.Network != s.Spec.Network || len(s.Spec.Env) > 0 {
		return errUnfit
	}
	box := *s
	box.Container = m.Container
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		c, err := w.link(ctx, &box)
		if err != nil {
			return err
		}
		err = c.StartKernel(ctx, "default", "python") // it is up, or comes up again
		if code := farm.CodeOf(err); code == farm.CodeInvalid || code == farm.CodeNotFound {
			return nil
		}
		return err
	})
	group.Go(func() error { return w.tellDeadline(ctx, &box) }) // until now it had none
	group.Go(func() error {
		if s.Spec.Resources == m.Resources {
			return nil // a change takes the engine longer than all the rest
		}
		return w.engine.Update(ctx, m.Container, s.Spec.Resources)
	})
	group.Go(func() error { return w.engine.Note(ctx, s.ID, s.Tenant, w.labels(&box)) })
	return group.Wait()
}

// forgetMember takes what the pool knows of a sandbox that has ended away. What fails is left to the reconciler.
func (w *Worker) forgetMember(ctx context.Context, s *farm.Sandbox) {
	if !s.Pooled {
		return
	}
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer done()
	_, err := w.dropMember(ctx, s.ID, store.MemberClaimed)
	if err := errors.Join(err, w.engine.RemoveNote(ctx, s.ID)); err != nil {
		w.log.WarnContext(ctx, "records of a sandbox from the warm pool are left to the reconciler", "sandbox_id", s.ID, "error", err)
	}
}

// unpool sends a create whose member has not enough room to grow to where any node may take it, and removes the member. The job
// is still this worker's.
func (w *Worker) unpool(ctx context.Context, r *run) error {
	if !r.Sandbox.Pooled || r.Job.Queue != farm.NodeQueue(w.node) {
		return nil
	}
	if err := w.persist(ctx, func(ctx context.Context) error {
		return w.store.UnassignNode(ctx, r.Job.Ref(), r.Job.Attempt, farm.QueueCPU)
	}); err != nil {
		return causeOr(ctx, err)
	}
	if taken, err := w.dropMember(ctx, r.Sandbox.ID, store.MemberClaimed); err != nil || !taken {
		return err // the reconciler removes what is left
	}
	w.scrap(ctx, store.Member{ID: r.Sandbox.ID, Node: w.node})
	return nil
}

// yieldMember makes room for a create: an idle member goes. It reports whether there was one.
func (w *Worker) yieldMember(ctx context.Context) (bool, error) {
	members, err := w.lookAtPool(ctx)
	if err != nil {
		return false, err
	}
	for _, m := range members {
		if m.State != store.MemberIdle {
			continue
		}
		taken, err := w.dropMember(ctx, m.ID, store.MemberIdle)
		if err != nil {
			return false, err
		}
		if taken { // else it was claimed just now
			w.seen.poolLeft.WithLabelValues(leftRoom).Inc()
			w.scrap(ctx, m)
			return true, nil
		}
	}
	return false, nil
}

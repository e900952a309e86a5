package placement

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/worker/node"
	"github.com/sandfarm/sandfarm/worker/retry"
)

// ClaimGrace is how long a claim may exist without a sandbox: the API records the sandbox right after the claim.
const ClaimGrace = time.Minute

// memberTimeout is how long a member may take to answer. It is idle, so it answers at once unless the machine is overloaded.
const memberTimeout = 5 * time.Second

// errUnfit says that a member cannot serve the sandbox that claimed it.
var errUnfit = errors.New("the member was made from another image, agent or settings")

// AssignMember makes the member that a sandbox has claimed the sandbox's own: the member gets the requested limits, and the engine's
// note names its owner. It reports false when there is no usable member: then the member is removed, and the sandbox starts cold.
func (p *Placer) AssignMember(ctx context.Context, s *farm.Sandbox) (container string, ok bool, err error) {
	m, err := p.store.Member(ctx, s.ID)
	switch {
	case errors.Is(err, store.ErrNoMember): // an earlier attempt started cold
	case err != nil:
		return "", false, err
	case m.Node == p.node.ID() && m.State == store.MemberClaimed && m.Tenant == s.Tenant:
		if err = p.assign(ctx, s, m); err == nil {
			return m.Container, true, nil
		}
		if ctx.Err() != nil {
			return "", false, context.Cause(ctx)
		}
		p.metrics.unusable.Inc()
		p.log.WarnContext(ctx, "a sandbox of the warm pool could not be used; another one is started", "sandbox_id", s.ID, "error", err)
		if _, err := p.DropMember(ctx, s.ID, store.MemberClaimed); err != nil {
			return "", false, err
		}
	}
	p.node.Disconnect(s.ID)
	return "", false, p.engine.Remove(ctx, p.engine.Name(s.ID)) // a container of this name must not be taken for the sandbox's
}

// assign checks a member, and sets its limits and its note. Each step can be repeated.
func (p *Placer) assign(ctx context.Context, s *farm.Sandbox, m *store.Member) error {
	ctx, done := context.WithTimeout(ctx, memberTimeout)
	defer done()
	version, err := p.MemberVersion(ctx, m.Image, m.Runtime)
	if err != nil {
		return err
	}
	runtime := p.node.Runtime(farm.SandboxSpec{Image: m.Image, Runtime: m.Runtime})
	if m.Version != version || runtime != p.node.Runtime(s.Spec) || m.Resources.DiskMB != s.Spec.Resources.DiskMB || m.Network != s.Spec.Network || len(s.Spec.Env) > 0 {
		return errUnfit
	}
	box := *s
	box.Container = m.Container
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		c, err := p.node.Connect(ctx, &box)
		if err != nil {
			return err
		}
		err = c.StartKernel(ctx, "default", "python") // it runs, or is started again
		if code := farm.CodeOf(err); code == farm.CodeInvalid || code == farm.CodeNotFound {
			return nil
		}
		return err
	})
	group.Go(func() error { return p.node.SendDeadline(ctx, &box) }) // a member has none
	group.Go(func() error {
		if s.Spec.Resources == m.Resources {
			return nil // an update takes the engine longer than all the rest
		}
		return p.engine.Update(ctx, m.Container, runtime, s.Spec.Resources)
	})
	group.Go(func() error { return p.engine.Note(ctx, s.ID, s.Tenant, node.Labels(&box)) })
	return group.Wait()
}

// ForgetMember removes the member record and the note of a sandbox that has ended. If that fails, the reconciler does it later.
func (p *Placer) ForgetMember(ctx context.Context, s *farm.Sandbox) {
	if !s.Pooled {
		return
	}
	ctx, done := retry.Detached(ctx)
	defer done()
	_, err := p.DropMember(ctx, s.ID, store.MemberClaimed)
	if err := errors.Join(err, p.engine.RemoveNote(ctx, s.ID)); err != nil {
		p.log.WarnContext(ctx, "records of a sandbox from the warm pool are left to the reconciler", "sandbox_id", s.ID, "error", err)
	}
}

// RemoveClaimed removes the member that a sandbox has claimed and left. What fails is left to the reconciler.
func (p *Placer) RemoveClaimed(ctx context.Context, s *farm.Sandbox) {
	m, err := p.store.Member(ctx, s.ID)
	if err != nil || m.Node != p.node.ID() || m.Container == "" {
		return
	}
	if taken, err := p.DropMember(ctx, s.ID, store.MemberClaimed); err == nil && taken {
		p.removeMember(ctx, *m)
	}
}

// evictIdleMember removes an idle member to make room for a create. It reports whether there was one.
func (p *Placer) evictIdleMember(ctx context.Context) (bool, error) {
	members, err := p.RefreshPool(ctx)
	if err != nil {
		return false, err
	}
	for _, m := range members {
		if m.State != store.MemberIdle {
			continue
		}
		taken, err := p.DropMember(ctx, m.ID, store.MemberIdle)
		if err != nil {
			return false, err
		}
		if taken { // otherwise it was claimed just now
			p.metrics.left.WithLabelValues(LeftRoom).Inc()
			p.removeMember(ctx, m)
			return true, nil
		}
	}
	return false, nil
}

package service

import (
	"context"
	"slices"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// Freeze hibernates a sandbox after the jobs before (farm.KindHibernate) or resumes it (farm.KindResume). Both succeed if there is nothing to do.
func (s *Service) Freeze(ctx context.Context, c Call, kind farm.JobKind, id string, r wire.FreezeRequest) (Outcome, error) {
	idem, err := c.idempotency()
	if err != nil {
		return Outcome{}, err
	}
	p := c.problems()
	p.check("/callback_url", s.checkCallback(ctx, r.CallbackURL))
	if err := p.err(); err != nil {
		return Outcome{}, err
	}
	box, err := s.sandbox(ctx, c.Tenant, id)
	if err != nil {
		return Outcome{}, err
	}
	if box.State.Accepts() && box.State != farm.SandboxHibernated {
		if err := s.checkHibernates(ctx, box); err != nil {
			return Outcome{}, err
		}
	}
	job := s.record(c, kind, id)
	job.CallbackURL = r.CallbackURL
	return s.submit(ctx, c, store.Accept{Job: job, Request: &farm.Request{}, Idempotency: idem})
}

// checkHibernates refuses to hibernate a sandbox whose node cannot. One that has no node yet may get one that can; its worker checks again.
func (s *Service) checkHibernates(ctx context.Context, box *farm.Sandbox) error {
	if box.Spec.GPU != nil {
		return farm.CannotHibernate(box)
	}
	for _, fresh := range []bool{false, true} {
		nodes, err := s.readNodes(ctx, fresh)
		if err != nil {
			return err
		}
		for node, runtimes := range nodes.hibernates {
			if (box.Node == "" || box.Node == node) && (box.Runtime == "" && len(runtimes) > 0 || slices.Contains(runtimes, box.Runtime)) {
				return nil
			}
		}
	}
	return farm.CannotHibernate(box)
}

// onIdleClose is the public name of farm.OnIdleClose.
const onIdleClose = "close"

// onIdle reads on_idle. It refuses hibernate where no node could do it with the sandbox.
func (s *Service) onIdle(ctx context.Context, p *problems, given *string, spec farm.SandboxSpec) farm.OnIdle {
	switch value := orElse(given, onIdleClose); value {
	case onIdleClose:
		return farm.OnIdleClose
	case string(farm.OnIdleHibernate):
	default:
		p.addf("/on_idle", "on_idle %q is neither %q nor %q", farm.Shorten(value), onIdleClose, farm.OnIdleHibernate)
		return farm.OnIdleClose
	}
	if spec.IdleSeconds == 0 {
		p.addf("/on_idle", "on_idle is hibernate, but idle_seconds is 0: the sandbox is never idle")
	}
	if !p.of("/runtime", "/gpu") {
		if err := s.checkHibernates(ctx, &farm.Sandbox{Runtime: spec.Runtime, Spec: spec}); err != nil {
			p.addf("/on_idle", "on_idle is hibernate, which needs a node whose engine makes checkpoints, gVisor (runtime runsc) and no GPU; see hibernates of GET /v1/workers")
		}
	}
	return farm.OnIdleHibernate
}

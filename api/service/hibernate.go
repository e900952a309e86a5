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

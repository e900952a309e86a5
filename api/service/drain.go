package service

import (
	"context"
	"slices"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Drains are the drains of nodes.
type Drains interface {
	SetDrain(ctx context.Context, d farm.Drain) (farm.Drain, error)
	Drain(ctx context.Context, node string) (farm.Drain, error)
	Drains(ctx context.Context) ([]farm.Drain, error)
	EndDrain(ctx context.Context, node string) error
	OpenOnNode(ctx context.Context, node string) ([]*farm.Sandbox, error)
}

// idleKeep is the public name of farm.DrainKeep.
const idleKeep = "keep"

// DrainNode drains a node, or changes its drain; CodeNotFound if no live worker uses it.
func (s *Service) DrainNode(ctx context.Context, c Call, node string, r wire.DrainRequest) (wire.Drain, error) {
	p, idle := c.problems(), farm.DrainKeep
	switch value := orElse(r.Idle, idleKeep); farm.DrainIdle(value) {
	case idleKeep:
	case farm.DrainHibernate, farm.DrainClose:
		idle = farm.DrainIdle(value)
	default:
		p.addf("/idle", "idle %q is none of %s, %s and %s", farm.Shorten(value), idleKeep, farm.DrainHibernate, farm.DrainClose)
	}
	if err := p.err(); err != nil {
		return wire.Drain{}, err
	}
	workers, err := s.Store.Workers(ctx)
	if err != nil {
		return wire.Drain{}, err
	}
	if !slices.ContainsFunc(workers, func(w farm.Worker) bool { return w.Node == node }) {
		return wire.Drain{}, farm.Errorf(farm.CodeNotFound, "No live worker uses node %s; GET /v1/workers names the nodes.", farm.Shorten(node))
	}
	d, err := s.Store.SetDrain(ctx, farm.Drain{Node: node, Since: s.Now().UTC(), Idle: idle})
	if err != nil {
		return wire.Drain{}, err
	}
	return s.progress(ctx, d, workers)
}

// NodeDrain reads the drain of a node; CodeNotFound if it has none.
func (s *Service) NodeDrain(ctx context.Context, node string) (wire.Drain, error) {
	d, err := s.Store.Drain(ctx, node)
	if err != nil {
		return wire.Drain{}, err
	}
	workers, err := s.Store.Workers(ctx)
	if err != nil {
		return wire.Drain{}, err
	}
	return s.progress(ctx, d, workers)
}

// EndNodeDrain ends the drain of a node; CodeNotFound if it has none.
func (s *Service) EndNodeDrain(ctx context.Context, node string) error {
	return s.Store.EndDrain(ctx, node)
}

// drainsOf are the drains of the nodes of some workers, by node.
func (s *Service) drainsOf(ctx context.Context, workers []farm.Worker) (map[string]wire.Drain, error) {
	drains, err := s.Store.Drains(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string]wire.Drain{}
	for _, d := range drains {
		if !slices.ContainsFunc(workers, func(w farm.Worker) bool { return w.Node == d.Node }) {
			continue
		}
		if out[d.Node], err = s.progress(ctx, d, workers); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// progress is a drain with what is left on its node.
func (s *Service) progress(ctx context.Context, d farm.Drain, workers []farm.Worker) (wire.Drain, error) {
	open, err := s.Store.OpenOnNode(ctx, d.Node)
	if err != nil {
		return wire.Drain{}, err
	}
	own := slices.DeleteFunc(slices.Clone(workers), func(w farm.Worker) bool { return w.Node != d.Node })
	p := farm.ProgressOfDrain(own, open)
	out := wire.Drain{
		Node: d.Node, Since: d.Since.UTC(), Idle: idleKeep, State: string(p.State), Sandboxes: p.Sandboxes, Hibernated: p.Hibernated, Jobs: p.Jobs,
	}
	if d.Idle != farm.DrainKeep {
		out.Idle = string(d.Idle)
	}
	if !p.Ends.IsZero() {
		ends := p.Ends.UTC()
		out.EndsBy = &ends
	}
	return out, nil
}

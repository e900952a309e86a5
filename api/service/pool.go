package service

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

const (
	// poolMemoryMB is the least memory of a sandbox that comes from the pool: its kernel holds imported packages already, and less
	// could not hold them and the code.
	poolMemoryMB = 512
	// poolTimeout bounds the claim: a create that gets no answer starts cold.
	poolTimeout = 2 * time.Second
)

// fromPool has a create take a sandbox that was started ahead of need, where there is one that fits: the record gets its id, and
// the job goes to its node. Without one everything stays as it is.
func (s *Service) fromPool(ctx context.Context, job *farm.Job, box *farm.Sandbox) {
	spec := box.Spec
	if spec.GPU != nil || len(spec.Env) > 0 || len(spec.AllowHosts) > 0 || spec.Resources.MemoryMB < poolMemoryMB {
		return // what a container is made with cannot be given later
	}
	nodes, err := s.poolNodes(ctx, spec.Image)
	if err != nil || len(nodes) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, poolTimeout)
	defer cancel()
	m, err := s.Store.ClaimMember(ctx, store.MemberClaim{
		Tenant: box.Tenant, Image: spec.Image, Network: spec.Network, DiskMB: spec.Resources.DiskMB, Nodes: nodes,
	})
	s.Pooled(err == nil)
	if err != nil {
		if !errors.Is(err, store.ErrNoMember) {
			s.Logger.WarnContext(ctx, "the warm pool does not answer; the sandbox starts cold", slog.String("sandbox_id", box.ID), slog.Any("error", err))
		}
		return
	}
	box.ID, box.Node, box.Pooled = m.ID, m.Node, true
	job.SandboxID, job.Queue = m.ID, farm.NodeQueue(m.Node)
}

// poolNodes gives the nodes from which a sandbox of an image may come ready made: those whose engine answers, or none when no node
// is to have such sandboxes, as far as is known.
func (s *Service) poolNodes(ctx context.Context, image string) ([]string, error) {
	capacities, err := s.capacities(ctx, false)
	if err != nil {
		return nil, err
	}
	s.nodes.mu.Lock()
	defer s.nodes.mu.Unlock()
	var nodes []string
	for node := range capacities {
		if s.nodes.pooled[image] && !s.nodes.silent[node] {
			nodes = append(nodes, node)
		}
	}
	return nodes, nil
}

// settle gives a claimed sandbox back that its job did not take: the job was refused, or an earlier one answers the call. Where
// that is not certain the claim stays, and the node's worker finds out.
func (s *Service) settle(ctx context.Context, a store.Accept, accepted store.Accepted, err error) {
	if a.Sandbox == nil || !a.Sandbox.Pooled {
		return
	}
	switch code := farm.CodeOf(err); {
	case err == nil && accepted.Job.SandboxID == a.Sandbox.ID:
		return
	case err != nil && (code == farm.CodeUnavailable || code == farm.CodeInternal):
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), poolTimeout)
	defer cancel()
	if err := s.Store.ReturnMember(ctx, a.Sandbox.ID, a.Sandbox.Tenant); err != nil && !errors.Is(err, store.ErrNoMember) {
		s.Logger.WarnContext(ctx, "a claimed sandbox was not given back; its node's worker removes it", slog.String("sandbox_id", a.Sandbox.ID), slog.Any("error", err))
	}
}

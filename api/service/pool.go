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
	// poolMemoryMB is the least memory of a sandbox from the pool: its kernel has packages imported already, and less memory is
	// not enough for them and the code.
	poolMemoryMB = 512
	// poolTimeout bounds the claim: a create whose claim times out starts cold.
	poolTimeout = 2 * time.Second
)

// fromPool claims a pool member for a create if one fits: the record gets its id, and the job is sent to its node. Otherwise
// nothing changes.
func (s *Service) fromPool(ctx context.Context, job *farm.Job, box *farm.Sandbox) {
	spec := box.Spec
	if spec.GPU != nil || len(spec.Env) > 0 || len(spec.AllowHosts) > 0 || len(spec.Secrets) > 0 || spec.Resources.MemoryMB < poolMemoryMB {
		return // these are fixed when a container is created
	}
	claims, err := s.poolClaims(ctx, spec)
	if err != nil || len(claims) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, poolTimeout)
	defer cancel()
	var m *store.Member
	for _, claim := range claims {
		claim.Tenant, claim.Image, claim.Network, claim.DiskMB = box.Tenant, spec.Image, spec.Network, spec.Resources.DiskMB
		if m, err = s.Store.ClaimMember(ctx, claim); !errors.Is(err, store.ErrNoMember) {
			break
		}
	}
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

// poolClaims says which members a create may claim, and on which nodes: those whose engine answers and that are not drained. There are none if no known node has a
// pool for it. Members of an image's default runtime are kept as such, so a runtime that is the default somewhere is claimed there too.
func (s *Service) poolClaims(ctx context.Context, spec farm.SandboxSpec) ([]store.MemberClaim, error) {
	known, err := s.readNodes(ctx, false)
	if err != nil {
		return nil, err
	}
	var standard, named []string
	for node := range known.largest {
		switch {
		case known.silent[node]:
		case spec.Runtime == "" || known.defaults[imageOnNode{spec.Image, node}] == spec.Runtime:
			standard = append(standard, node)
		default:
			named = append(named, node)
		}
	}
	var claims []store.MemberClaim
	if len(standard) > 0 && known.pooled[poolKey{image: spec.Image}] {
		claims = append(claims, store.MemberClaim{Nodes: standard})
	}
	if len(named) > 0 && known.pooled[poolKey{spec.Image, spec.Runtime}] {
		claims = append(claims, store.MemberClaim{Runtime: spec.Runtime, Nodes: named})
	}
	return claims, nil
}

// settle returns a claimed member to the pool if its job does not use it: the job was refused, or an earlier job answers the
// call. If that is not certain, the claim stays and the node's worker reconciles it.
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

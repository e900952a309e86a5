package worker

import (
	"context"
	"errors"
	"fmt"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/worker/placement"
)

// poolView is the pool of this node in one run of the reconciler.
type poolView struct {
	members map[string]store.Member
	notes   []string // sandboxes with a note, listed before the containers were
	idle    int      // containers of members without an owner
}

// listNotes lists the notes. It runs before the containers are listed: a container is older than its note, so a note without a container
// in that list is left over.
func (r *reconciler) listNotes(ctx context.Context) (*poolView, error) {
	notes, err := r.engine.Notes(ctx)
	if err != nil {
		return nil, fmt.Errorf("list notes: %w", err)
	}
	return &poolView{notes: notes}, nil
}

// readMembers reads the records, after the containers were listed: a member is recorded before its container is created.
func (v *poolView) readMembers(ctx context.Context, p *placement.Placer) error {
	list, err := p.RefreshPool(ctx)
	if err != nil {
		return err
	}
	v.members = make(map[string]store.Member, len(list))
	for _, m := range list {
		v.members[m.ID] = m
	}
	return nil
}

// keepsMember reports whether the container of a member stays: it has not been claimed, or its sandbox is open. The records say so, or
// else the engine's note.
func (r *reconciler) keepsMember(ctx context.Context, v *poolView, c farm.Container) (bool, error) {
	m, known := v.members[c.SandboxID]
	if known && m.State != store.MemberClaimed {
		v.idle++
		return true, nil // the maintenance of the pool checks it
	}
	if known {
		if live, err := r.claimIsLive(ctx, m); !errors.Is(err, store.ErrDocumentGone) {
			return live, err
		}
	}
	c, err := r.engine.Noted(ctx, c)
	if farm.CodeOf(err) == farm.CodeNotFound {
		return known, nil // it was never handed to an owner
	}
	if err != nil {
		return false, fmt.Errorf("read note: %w", err)
	}
	return r.keepsSandbox(ctx, c)
}

// claimIsLive reports whether a claim has a sandbox on this node that is open, or may get one yet.
func (r *reconciler) claimIsLive(ctx context.Context, m store.Member) (bool, error) {
	s, err := r.store.Sandbox(ctx, farm.Ref{Tenant: m.Tenant, ID: m.ID})
	switch {
	case farm.CodeOf(err) == farm.CodeNotFound:
		return r.now().Sub(m.At) < placement.ClaimGrace, nil
	case err != nil:
		return false, fmt.Errorf("read sandbox: %w", err)
	}
	return !s.State.Final() && s.Generation == 1 && (s.Node == r.node.ID() || s.Node == ""), nil // a later generation has left its member
}

// reconcilePool corrects the records of the pool: it removes members without a container, abandoned claims and notes without a
// container.
func (r *reconciler) reconcilePool(ctx context.Context, v *poolView, contained map[string]bool) error {
	var errs []error
	orphaned, err := r.poolOrphaned(ctx)
	errs = append(errs, err)
	for _, m := range v.members {
		switch {
		case orphaned && m.State != store.MemberClaimed:
			errs = append(errs, r.placement.Retire(ctx, m, placement.LeftSurplus))
		case contained[m.ID]:
		case m.State == store.MemberIdle:
			if _, gone := r.node.Gone(ctx, r.placement.MemberSandbox(m)); gone {
				errs = append(errs, r.placement.Retire(ctx, m, placement.LeftDied))
			}
		case m.State == store.MemberClaimed:
			errs = append(errs, r.reconcileClaim(ctx, m))
		}
	}
	for _, id := range v.notes {
		if !contained[id] {
			errs = append(errs, r.engine.RemoveNote(ctx, id))
		}
	}
	return errors.Join(errs...)
}

// reconcileClaim removes a claim whose container is gone once its sandbox has ended, is on another node or was never recorded.
func (r *reconciler) reconcileClaim(ctx context.Context, m store.Member) error {
	if stands, err := r.claimIsLive(ctx, m); err != nil || stands {
		return err
	}
	if _, err := r.placement.DropMember(ctx, m.ID, store.MemberClaimed); err != nil {
		return err
	}
	r.placement.ReleaseCapacity(ctx, farm.Ref{ID: m.ID}, 1)
	return nil
}

// poolOrphaned reports whether no worker of this node wants a pool any more.
func (r *reconciler) poolOrphaned(ctx context.Context) (bool, error) {
	if r.placement.WantsPool() {
		return false, nil
	}
	workers, err := r.store.Workers(ctx)
	if err != nil {
		return false, err
	}
	for _, other := range workers {
		if other.Node != r.node.ID() {
			continue
		}
		for _, p := range other.Pool {
			if p.Target > 0 {
				return false, nil
			}
		}
	}
	return true, nil
}

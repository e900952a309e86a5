package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// claimPatience is how long a claim may stand without a sandbox: the API writes it right after.
const claimPatience = time.Minute

// poolView is what the reconciler knows of the pool of this node.
type poolView struct {
	members map[string]store.Member
	notes   []string // sandboxes with a note, listed before the containers were
	idle    int      // containers of members that are nobody's
}

func isMember(c engine.Container) bool { return c.Labels[labelMember] != "" }

// notesFirst lists the notes. It is called before the containers are listed: the container of a note is older than it, so
// one that is not there then is gone.
func (w *Worker) notesFirst(ctx context.Context) (*poolView, error) {
	notes, err := w.engine.Notes(ctx)
	if err != nil {
		return nil, fmt.Errorf("list notes: %w", err)
	}
	return &poolView{notes: notes}, nil
}

// readMembers reads the records, after the containers were listed: a member is written down before its container is made.
func (v *poolView) readMembers(ctx context.Context, w *Worker) error {
	list, err := w.lookAtPool(ctx)
	if err != nil {
		return err
	}
	v.members = make(map[string]store.Member, len(list))
	for _, m := range list {
		v.members[m.ID] = m
	}
	return nil
}

// keepsMember reports whether the container of a member stays: one that nobody has claimed, and one whose sandbox is open, as the
// records or else the engine's note tell.
func (w *Worker) keepsMember(ctx context.Context, v *poolView, c engine.Container) (bool, error) {
	m, known := v.members[c.SandboxID]
	if known && m.State == store.MemberClaimed {
		return w.stands(ctx, m)
	}
	if known {
		v.idle++
		return true, nil // what is wrong with it is found when the pool is tended
	}
	c, err := w.noted(ctx, c)
	if farm.CodeOf(err) == farm.CodeNotFound {
		return false, nil // it was never handed over: nobody has used it
	}
	if err != nil {
		return false, err
	}
	return w.keeps(ctx, c)
}

// noted gives the container of a member as that of the sandbox which it became, as the engine's note tells; CodeNotFound when
// it became none.
func (w *Worker) noted(ctx context.Context, c engine.Container) (engine.Container, error) {
	labels, err := w.engine.Noted(ctx, c.SandboxID)
	if err != nil {
		return c, fmt.Errorf("read note: %w", err)
	}
	c.Labels, c.Tenant = labels, labels[engine.LabelTenant]
	return c, nil
}

// stands reports whether a claim has a sandbox on this node that is open, or may get one yet.
func (w *Worker) stands(ctx context.Context, m store.Member) (bool, error) {
	s, err := w.store.Sandbox(ctx, farm.Ref{Tenant: m.Tenant, ID: m.ID})
	switch {
	case farm.CodeOf(err) == farm.CodeNotFound:
		return w.now().Sub(m.At) < claimPatience, nil
	case err != nil:
		return false, fmt.Errorf("read sandbox: %w", err)
	}
	return !s.State.Final() && (s.Node == w.node || s.Node == ""), nil
}

// reconcilePool corrects the records of the pool: members without a container leave it, claims that came to nothing are
// forgotten, and so are notes without a container.
func (w *Worker) reconcilePool(ctx context.Context, v *poolView, there map[string]bool) error {
	var errs []error
	orphaned, err := w.poolOrphaned(ctx)
	errs = append(errs, err)
	for _, m := range v.members {
		switch {
		case orphaned && m.State != store.MemberClaimed:
			errs = append(errs, w.retire(ctx, m, leftSurplus))
		case there[m.ID]:
		case m.State == store.MemberIdle:
			if _, gone := w.gone(ctx, w.memberBox(m)); gone {
				errs = append(errs, w.retire(ctx, m, leftDied))
			}
		case m.State == store.MemberClaimed:
			errs = append(errs, w.reconcileClaim(ctx, m))
		}
	}
	for _, id := range v.notes {
		if !there[id] {
			errs = append(errs, w.engine.RemoveNote(ctx, id))
		}
	}
	return errors.Join(errs...)
}

// reconcileClaim forgets a claim whose container is gone once its sandbox has ended, is elsewhere or never was.
func (w *Worker) reconcileClaim(ctx context.Context, m store.Member) error {
	if stands, err := w.stands(ctx, m); err != nil || stands {
		return err
	}
	if _, err := w.dropMember(ctx, m.ID, store.MemberClaimed); err != nil {
		return err
	}
	w.leaveRoom(ctx, farm.Ref{ID: m.ID})
	return nil
}

// poolOrphaned reports whether no worker of this node wants a pool any more.
func (w *Worker) poolOrphaned(ctx context.Context) (bool, error) {
	if w.pool.wants() {
		return false, nil
	}
	workers, err := w.store.Workers(ctx)
	if err != nil {
		return false, err
	}
	for _, other := range workers {
		if other.Node != w.node {
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

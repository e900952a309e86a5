package store

import (
	"context"
	"errors"
)

// ReleaseNode removes what a node that is gone holds: its reservations, the leases of its GPUs, its members of the pool, claimed ones too, and its
// drain.
// If the node comes back, its reconciler restores what its containers have, and leases no GPU before.
func (s *Store) ReleaseNode(ctx context.Context, node string) error {
	pipe := s.rdb.Pipeline()
	pipe.Del(ctx, s.Key(SlotCapacity, KeyReservations, node), s.Key(SlotCapacity, KeyGPUs, node), s.Key(SlotCapacity, KeyGPUFirst, node))
	pipe.HDel(ctx, s.Index(SlotCapacity, IndexCapacities), node)
	if _, err := pipe.Exec(ctx); err != nil {
		return wrap("release what a node holds", err)
	}
	members, err := s.Members(ctx, node)
	if err != nil {
		return err
	}
	for _, m := range members {
		if err := s.DropMember(ctx, m.ID, MemberStarting, MemberIdle, MemberClaimed); err != nil && !errors.Is(err, ErrNoMember) {
			return err
		}
	}
	pipe = s.rdb.Pipeline()
	pipe.Del(ctx, s.Key(SlotNodes, KeyTenantsOf, node))
	pipe.HDel(ctx, s.Index(SlotNodes, IndexDrains), node)
	_, err = pipe.Exec(ctx)
	return wrap("forget tenants and drain of a node", err)
}

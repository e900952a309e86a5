package store

import (
	"context"
	"errors"
)

// ReleaseNode removes what a node that is gone holds: its reservations, the leases of its GPUs and its members of the pool, claimed ones too.
// If the node comes back, its reconciler restores what its containers have, and leases no GPU before.
func (s *Store) ReleaseNode(ctx context.Context, node string) error {
	pipe := s.rdb.Pipeline()
	pipe.Del(ctx, s.nodeKey("node:"+node), s.nodeKey("gpus:"+node), s.nodeKey("gpuhold:"+node))
	pipe.HDel(ctx, s.nodeKey("nodes"), node)
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
	return wrap("forget tenants of a node", s.rdb.Del(ctx, s.tenantsOfNode(node)).Err())
}

package store

import (
	"context"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Callbacks lists finished jobs whose callback has not been delivered, the longest waiting first.
func (s *Store) Callbacks(ctx context.Context, tenant string, limit int) ([]farm.Ref, error) {
	ids, err := s.rdb.ZRange(ctx, s.Index(tenant, IndexCallbacks), 0, int64(max(limit, 1))-1).Result()
	if err != nil {
		return nil, wrap("list callbacks", err)
	}
	return refs(tenant, ids), nil
}

// CallbacksBeyond lists the callbacks that a tenant has beyond a number of them, the longest waiting first, at most limit.
func (s *Store) CallbacksBeyond(ctx context.Context, tenant string, keep, limit int) ([]farm.Ref, error) {
	n, err := s.rdb.ZCard(ctx, s.Index(tenant, IndexCallbacks)).Result()
	if err != nil {
		return nil, wrap("count callbacks", err)
	}
	if excess := min(int(n)-keep, limit); excess > 0 {
		return s.Callbacks(ctx, tenant, excess)
	}
	return nil, nil
}

// CallbackDone removes a job from Callbacks: its callback was delivered, or given up.
func (s *Store) CallbackDone(ctx context.Context, ref farm.Ref) error {
	return wrap("finish callback", s.rdb.ZRem(ctx, s.Index(ref.Tenant, IndexCallbacks), ref.ID).Err())
}

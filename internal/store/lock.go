package store

import (
	"context"
	"time"
)

// Lock takes a lock, or renews it for its owner. held reports whether the owner has it now, for ttl.
func (s *Store) Lock(ctx context.Context, name, owner string, ttl time.Duration) (held bool, err error) {
	r, err := s.RunOn(ctx, "take lock", "lock_take", s.Farm(FarmLock, name), owner, ttl.Milliseconds())
	return r.text(0) == "held", err
}

// Unlock releases a lock; it does nothing if another owner has it.
func (s *Store) Unlock(ctx context.Context, name, owner string) error {
	_, err := s.RunOn(ctx, "release lock", "lock_release", s.Farm(FarmLock, name), owner)
	return err
}

// LockTaken reports whether the lock has an owner now.
func (s *Store) LockTaken(ctx context.Context, name string) (bool, error) {
	n, err := s.rdb.Exists(ctx, s.Farm(FarmLock, name)).Result()
	return n == 1, wrap("read lock", err)
}

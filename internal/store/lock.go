package store

import (
	"context"
	"time"
)

// Lock takes a lock, or renews it for its owner. held reports whether the owner has it now, for ttl.
func (s *Store) Lock(ctx context.Context, name, owner string, ttl time.Duration) (held bool, err error) {
	n, err := s.scripts.lockTake.Run(ctx, s.rdb, []string{s.prefix + "lock:" + name}, owner, ttl.Milliseconds()).Int()
	return n == 1, wrap("take lock", err)
}

// Unlock releases a lock; it does nothing if another owner has it.
func (s *Store) Unlock(ctx context.Context, name, owner string) error {
	return wrap("release lock", s.scripts.lockRelease.Run(ctx, s.rdb, []string{s.prefix + "lock:" + name}, owner).Err())
}

// LockTaken reports whether the lock has an owner now.
func (s *Store) LockTaken(ctx context.Context, name string) (bool, error) {
	n, err := s.rdb.Exists(ctx, s.prefix+"lock:"+name).Result()
	return n == 1, wrap("read lock", err)
}

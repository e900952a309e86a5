package store

import (
	"context"
	"time"
)

// Lock takes a lock or, for its owner, renews it. It reports whether the owner holds it now, for ttl.
func (s *Store) Lock(ctx context.Context, name, owner string, ttl time.Duration) (held bool, err error) {
	n, err := s.scripts.lock.Run(ctx, s.rdb, []string{s.prefix + "lock:" + name}, owner, ttl.Milliseconds()).Int()
	return n == 1, wrap("take lock", err)
}

// Unlock gives a lock back; it does nothing when another holds it.
func (s *Store) Unlock(ctx context.Context, name, owner string) error {
	return wrap("give lock back", s.scripts.unlock.Run(ctx, s.rdb, []string{s.prefix + "lock:" + name}, owner).Err())
}

// LockTaken reports whether anybody has the lock now.
func (s *Store) LockTaken(ctx context.Context, name string) (bool, error) {
	n, err := s.rdb.Exists(ctx, s.prefix+"lock:"+name).Result()
	return n == 1, wrap("read lock", err)
}

package store

import "context"

// Held reports whether anybody holds a lock now.
func (s *Store) Held(ctx context.Context, name string) (bool, error) {
	n, err := s.rdb.Exists(ctx, s.prefix+"lock:"+name).Result()
	return n == 1, wrap("look at lock", err)
}

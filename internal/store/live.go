package store

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"
)

// liveTries is how often a change of the authorities is tried when others change them at the same time.
const liveTries = 20

// liveKey is the list of authorities of the live path. It has a hash tag of its own, which no tenant has.
func (s *Store) liveKey() string { return s.prefix + "{farm:live}:authorities" }

// LiveAuthorities reads the authorities of the live path; nil: there are none.
func (s *Store) LiveAuthorities(ctx context.Context) ([]byte, error) {
	doc, err := s.rdb.Get(ctx, s.liveKey()).Bytes()
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	return doc, wrap("read authorities", err)
}

// ChangeLiveAuthorities replaces the authorities by what change makes of them, and returns them. Nil keeps them. change is called again when
// another process was faster.
func (s *Store) ChangeLiveAuthorities(ctx context.Context, change func(list []byte) ([]byte, error)) (list []byte, err error) {
	for range liveTries {
		err = s.rdb.Watch(ctx, func(tx *redis.Tx) error {
			before, err := tx.Get(ctx, s.liveKey()).Bytes()
			if err != nil && !errors.Is(err, redis.Nil) {
				return err
			}
			after, err := change(before)
			if err != nil {
				return err
			}
			if after == nil {
				list = before
				return nil
			}
			list = after
			_, err = tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error { return pipe.Set(ctx, s.liveKey(), after, 0).Err() })
			return err
		}, s.liveKey())
		if !errors.Is(err, redis.TxFailedErr) {
			break
		}
	}
	return list, wrap("change authorities", err)
}

package store

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
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
		before, err := s.LiveAuthorities(ctx)
		if err != nil {
			return nil, err
		}
		after, err := change(before)
		if err != nil || after == nil {
			return before, err
		}
		replaced, err := s.scripts.liveReplace.Run(ctx, s.rdb, []string{s.liveKey()}, before, after).Bool()
		if err != nil {
			return nil, wrap("change authorities", err)
		}
		if replaced {
			return after, nil
		}
	}
	return nil, farm.Errorf(farm.CodeUnavailable, "the authorities were changed by others %d times in a row: try again", liveTries)
}

package store

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// liveTries is how often a change of the authorities is tried when others change them at the same time.
const liveTries = 20

// LiveAuthorities reads the authorities of the live path; nil: there are none.
func (s *Store) LiveAuthorities(ctx context.Context) ([]byte, error) {
	doc, err := s.rdb.Get(ctx, s.Index(SlotLive, IndexAuthorities)).Bytes()
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
		r, err := s.Run(ctx, "change authorities", "live_replace", SlotLive, before, after)
		if err != nil {
			return nil, err
		}
		if r.text(0) == "ok" {
			return after, nil
		}
	}
	return nil, farm.Errorf(farm.CodeUnavailable, "the authorities were changed by others %d times in a row: try again", liveTries)
}

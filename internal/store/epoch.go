package store

import (
	"context"
	"crypto/rand"

	"github.com/redis/go-redis/v9"
)

// Epoch identifies the life of the data in Redis. The first call creates it, so a changed epoch means that all records were lost
// in between.
func (s *Store) Epoch(ctx context.Context) (string, error) {
	var epoch *redis.StringCmd
	_, err := s.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.SetNX(ctx, s.prefix+"epoch", rand.Text(), 0)
		epoch = pipe.Get(ctx, s.prefix+"epoch")
		return nil
	})
	if err != nil {
		return "", wrap("read epoch", err)
	}
	return epoch.Val(), nil
}

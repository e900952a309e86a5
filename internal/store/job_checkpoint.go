package store

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Checkpoint stores a small state of a running job for the worker that may take it over; it is removed when the job ends. ErrFenced if the
// job no longer runs under this attempt.
func (s *Store) Checkpoint(ctx context.Context, ref farm.Ref, attempt int, data []byte) error {
	r, err := s.RunConfirmed(ctx, "write checkpoint", "job_checkpoint", ref.Tenant, ref.ID, attempt, data)
	if err != nil {
		return err
	}
	return fenced("write checkpoint", ref, r)
}

// LoadCheckpoint reads the last checkpoint of a job; nil if there is none.
func (s *Store) LoadCheckpoint(ctx context.Context, ref farm.Ref) ([]byte, error) {
	data, err := s.rdb.Get(ctx, s.Key(ref.Tenant, KeyCheckpoint, ref.ID)).Bytes()
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	return data, wrap("read checkpoint", err)
}

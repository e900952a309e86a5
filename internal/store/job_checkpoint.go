package store

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Checkpoint keeps a small state of a running job for the worker that may take it over. ErrFenced when the job is not
// this attempt's any more. It is forgotten with the job's end.
func (s *Store) Checkpoint(ctx context.Context, ref farm.Ref, attempt int, data []byte) error {
	r, err := s.run(ctx, "write checkpoint", s.scripts.checkpoint, ref.Tenant, ref.ID, attempt, data)
	if err != nil {
		return err
	}
	return fenced("write checkpoint", ref, r)
}

// LoadCheckpoint gives the last checkpoint of a job, nil when there is none.
func (s *Store) LoadCheckpoint(ctx context.Context, ref farm.Ref) ([]byte, error) {
	data, err := s.rdb.Get(ctx, s.key(ref.Tenant, "cp", ref.ID)).Bytes()
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	return data, wrap("read checkpoint", err)
}

package store

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// ParkedJobs are the runnable jobs of a queue that are parked: their tenants have as many tasks in it as the queue share allows.
type ParkedJobs struct {
	Jobs  int
	Since time.Time // since when the longest waiting tenant's next job has been runnable
}

// Parked counts the parked jobs of all tenants by queue. Queues without any are left out.
func (s *Store) Parked(ctx context.Context) (map[string]ParkedJobs, error) {
	tenants, err := s.Tenants(ctx)
	if err != nil || len(tenants) == 0 {
		return nil, err
	}
	pipe := s.rdb.Pipeline()
	found := make([]*redis.IntCmd, len(tenants))
	for i, tenant := range tenants {
		found[i] = pipe.Exists(ctx, s.Index(tenant, IndexParkedShares))
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, wrap("look for parked jobs", err)
	}
	out := map[string]ParkedJobs{}
	for i, tenant := range tenants {
		if found[i].Val() == 0 {
			continue
		}
		r, err := s.Run(ctx, "count parked jobs", "parked", tenant)
		if err != nil {
			return nil, err
		}
		for _, row := range r.rows(1) {
			queue, since := row.text(0), moment(row.text(2))
			parked := out[queue]
			parked.Jobs += row.number(1)
			if parked.Since.IsZero() || !since.IsZero() && since.Before(parked.Since) {
				parked.Since = since
			}
			out[queue] = parked
		}
	}
	return out, nil
}

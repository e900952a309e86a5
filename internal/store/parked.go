package store

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// ParkedJobs is what is held back of a queue, since its tenants have as many tasks on it as they may.
type ParkedJobs struct {
	Jobs  int
	Since time.Time // when the one was ready for the queue that is next of its tenant's, the earliest of all tenants
}

// Holds says what is held back of the queues, by their names; queues of which nothing is are left out.
func (s *Store) Parked(ctx context.Context) (map[string]ParkedJobs, error) {
	tenants, err := s.Tenants(ctx)
	if err != nil || len(tenants) == 0 {
		return nil, err
	}
	pipe := s.rdb.Pipeline()
	some := make([]*redis.IntCmd, len(tenants))
	for i, tenant := range tenants {
		some[i] = pipe.Exists(ctx, s.index(tenant, "holds"))
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, wrap("look for held jobs", err)
	}
	out := map[string]ParkedJobs{}
	for i, tenant := range tenants {
		if some[i].Val() == 0 {
			continue
		}
		r, err := s.run(ctx, "list held jobs", s.scripts.holds, tenant)
		if err != nil {
			return nil, err
		}
		for _, row := range r.rows(1) {
			n, _ := strconv.Atoi(row.text(1))
			hold, since := out[row.text(0)], moment(row.text(2))
			hold.Jobs += n
			if hold.Since.IsZero() || !since.IsZero() && since.Before(hold.Since) {
				hold.Since = since
			}
			out[row.text(0)] = hold
		}
	}
	return out, nil
}

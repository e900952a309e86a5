package store

import (
	"context"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// packageBytes bounds what PackageJobs knows of a sandbox: the names and the ids of the jobs, together. Some 1300 usual names.
const packageBytes = 64 << 10

// PackageJobs finds the last job that installed each package in a sandbox, by the names of Accept.Packages. Packages that no job installed
// are left out; no names at all mean every package. Of a sandbox with more than packageBytes of them, those of earlier jobs are left out as well.
func (s *Store) PackageJobs(ctx context.Context, sandbox farm.Ref, names ...string) (map[string]string, error) {
	key := s.Key(sandbox.Tenant, KeyPackages, sandbox.ID)
	if len(names) == 0 {
		all, err := s.rdb.HGetAll(ctx, key).Result()
		return all, wrap("list packages", err)
	}
	values, err := s.rdb.HMGet(ctx, key, names...).Result()
	if err != nil {
		return nil, wrap("find packages", err)
	}
	found := make(map[string]string, len(names))
	for i, value := range values {
		if job, ok := value.(string); ok {
			found[names[i]] = job
		}
	}
	return found, nil
}

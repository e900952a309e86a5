package store

import (
	"context"
	"sync"
	"time"
)

// tenantCache remembers for a while which tenants are stored, to save the call.
type tenantCache struct {
	mu     sync.Mutex
	stored map[string]time.Time
}

// tenantCacheTTL bounds how long a tenant may be missing in a Redis that lost its data.
const tenantCacheTTL = time.Minute

func newTenantCache() *tenantCache { return &tenantCache{stored: map[string]time.Time{}} }

func (c *tenantCache) fresh(name string, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ok := c.stored[name]
	return ok && now.Sub(at) < tenantCacheTTL
}

func (c *tenantCache) add(name string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stored[name] = now
}

// rememberTenant stores a tenant's name for Tenants, unless it did so within the last minute.
func (s *Store) rememberTenant(ctx context.Context, tenant string) error {
	now := time.Now()
	if s.tenants.fresh(tenant, now) {
		return nil
	}
	if err := s.storeTenant(ctx, tenant); err != nil {
		return err
	}
	s.tenants.add(tenant, now)
	return nil
}

func (s *Store) storeTenant(ctx context.Context, tenant string) error {
	return wrap("store tenant", s.rdb.SAdd(ctx, s.Farm(FarmTenants, ""), tenant).Err())
}

// Tenants lists every tenant for which a job was accepted.
func (s *Store) Tenants(ctx context.Context) ([]string, error) {
	names, err := s.rdb.SMembers(ctx, s.Farm(FarmTenants, "")).Result()
	return names, wrap("list tenants", err)
}

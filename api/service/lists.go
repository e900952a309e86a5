package service

import (
	"context"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/store"
)

const (
	// listsFor is how long the lists of a tenant are cached, in processes other than the one that sets them.
	listsFor = time.Second
	// maxCachedTenants bounds the tenants whose lists are cached.
	maxCachedTenants = 10_000
)

// tenantLists caches which runtimes the sandboxes of a tenant may have, and which hosts they may reach.
type tenantLists struct {
	mu    sync.Mutex
	known map[string]cachedLists
}

type cachedLists struct {
	store.TenantLists
	read time.Time
}

// of returns the lists of a tenant.
func (t *tenantLists) of(ctx context.Context, s *Service, tenant string) (store.TenantLists, error) {
	now := s.Now()
	t.mu.Lock()
	cached, ok := t.known[tenant]
	t.mu.Unlock()
	if age := now.Sub(cached.read); ok && age >= 0 && age < listsFor {
		return cached.TenantLists, nil
	}
	lists, err := s.Store.TenantLists(ctx, tenant)
	if err != nil {
		return store.TenantLists{}, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.known == nil || len(t.known) >= maxCachedTenants {
		t.known = map[string]cachedLists{}
	}
	t.known[tenant] = cachedLists{lists, now}
	return lists, nil
}

// forget makes the next call read the lists of a tenant.
func (t *tenantLists) forget(tenant string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.known, tenant)
}

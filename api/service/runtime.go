package service

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// runtimesFor is how long the runtimes of a tenant are cached, in processes other than the one that sets them.
	runtimesFor = time.Second
	// maxCachedTenants bounds the tenants whose runtimes are cached.
	maxCachedTenants = 10_000
)

// tenantRuntimes caches which runtimes the sandboxes of a tenant may have.
type tenantRuntimes struct {
	mu    sync.Mutex
	known map[string]cachedRuntimes
}

type cachedRuntimes struct {
	names []string
	read  time.Time
}

// of returns the runtimes of a tenant, the default first; none: those of the farm.
func (t *tenantRuntimes) of(ctx context.Context, s *Service, tenant string) ([]string, error) {
	now := s.Now()
	t.mu.Lock()
	cached, ok := t.known[tenant]
	t.mu.Unlock()
	if age := now.Sub(cached.read); ok && age >= 0 && age < runtimesFor {
		return cached.names, nil
	}
	names, err := s.Store.TenantRuntimes(ctx, tenant)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.known == nil || len(t.known) >= maxCachedTenants {
		t.known = map[string]cachedRuntimes{}
	}
	t.known[tenant] = cachedRuntimes{names: names, read: now}
	return names, nil
}

// forget makes the next call read the runtimes of a tenant.
func (t *tenantRuntimes) forget(tenant string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.known, tenant)
}

// runtime is the OCI runtime that a new sandbox must have: that of the request, or else the default of its tenant. Empty leaves it to the
// node.
func (s *Service) runtime(ctx context.Context, p *problems, tenant string, given *string) string {
	own, err := s.runtimes.of(ctx, s, tenant)
	if err != nil {
		p.check("/runtime", err)
		return ""
	}
	var name string
	switch {
	case given != nil:
		name = *given
	case len(own) > 0:
		name = own[0]
	default:
		return ""
	}
	if err := farm.CheckRuntime(name); err != nil {
		p.addf("/runtime", "runtime: %s", farm.MessageOf(err))
		return ""
	}
	if len(own) > 0 && !slices.Contains(own, name) {
		p.addf("/runtime", "runtime %s is not allowed for your tenant: it may have %s", name, strings.Join(own, ", "))
		return name
	}
	what := "runtime " + name
	if given == nil {
		what += ", the default of your tenant,"
	}
	p.check("/runtime", s.checkRuntime(ctx, name, what))
	return name
}

// checkRuntime refuses a runtime that no live worker offers: its sandbox would wait forever. If no worker is known, it may wait. what names
// the runtime in the error.
func (s *Service) checkRuntime(ctx context.Context, name, what string) error {
	var offered []string
	for _, fresh := range []bool{false, true} {
		nodes, err := s.readNodes(ctx, fresh)
		switch {
		case err != nil:
			return err
		case len(nodes.runtimes) == 0:
			return nil
		}
		offered = nil
		for _, list := range nodes.runtimes {
			if list == nil { // it would start the sandbox with its default
				return farm.Errorf(farm.CodeUnavailable, "A worker of an earlier release, which cannot choose the runtime of a sandbox, is still live. Try again when it has been updated.")
			}
			offered = append(offered, list...)
		}
		if slices.Contains(offered, name) {
			return nil
		}
	}
	slices.Sort(offered)
	return farm.Invalidf("%s is not offered; there is %s", what, strings.Join(slices.Compact(offered), ", "))
}

// runtimeText names a runtime in a list of what a sandbox needs; "" is nothing.
func runtimeText(name string) string {
	if name == "" {
		return ""
	}
	return fmt.Sprintf(", runtime %s", name)
}

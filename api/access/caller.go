package access

import (
	"context"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// DefaultTenant owns everything on a farm without keys.
const DefaultTenant = "default"

// Caller is who sends a request.
type Caller struct {
	Tenant string
	KeyID  string // of the key that was sent; "" on a farm without keys
	Scopes []farm.Scope
	// Fleet means that the caller sees the whole fleet, and not only what concerns its tenant.
	Fleet bool

	settings bool         // the key is one of the settings, which are never revoked
	sum      store.KeySum // of a key that was made at run time
}

// May reports whether the caller has a scope.
func (c Caller) May(scope farm.Scope) bool { return farm.Allows(c.Scopes, scope) }

// anyone is every caller of a farm without keys: the operator, since such a farm listens on loopback only.
func anyone() Caller {
	return Caller{Tenant: DefaultTenant, Scopes: []farm.Scope{farm.ScopeRun, farm.ScopeAdmin}, Fleet: true}
}

// Operator is a caller who needs no key, because the operating system has let him at the farm's records.
func Operator() Caller {
	c := anyone()
	c.KeyID, c.settings = "local", true
	return c
}

// callerOf is who sends a key that was made at run time.
func callerOf(key farm.Key, sum store.KeySum) Caller {
	return Caller{Tenant: key.Tenant, KeyID: key.ID, Scopes: key.Scopes, Fleet: farm.Allows(key.Scopes, farm.ScopeAdmin), sum: sum}
}

// FromSettings is who sends a key of the settings. Without scopes the key has run and metrics and sees the whole fleet: what keys
// could do before there were scopes. It has no admin, because the keys of several tenants are listed side by side in settings.
func FromSettings(key farm.Key) Caller {
	c := callerOf(key, store.KeySum{})
	c.settings = true
	if len(key.Scopes) == 0 {
		c.Scopes, c.Fleet = []farm.Scope{farm.ScopeRun, farm.ScopeMetrics}, true
	}
	return c
}

type contextKey struct{}

// WithCaller returns a context that names the caller.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, contextKey{}, c)
}

// CallerOf is the caller that WithCaller has named; the zero Caller, which may nothing, if there is none.
func CallerOf(ctx context.Context) Caller {
	c, _ := ctx.Value(contextKey{}).(Caller)
	return c
}

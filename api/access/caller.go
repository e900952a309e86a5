// Package access decides who a caller is and whether a request is let in: API keys (Keys), sessions of browsers (Sessions), tokens that the farm
// signs (Signer), and the quotas of requests and connections (Gate). It knows no routes.
package access

import (
	"context"
	"slices"
	"sync"
	"time"

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
	session  *Session     // of the browser that has shown the key; nil: the request has the key
}

// By returns the caller as one whom a session stands for: Hold ends its requests with the session, too.
func (c Caller) By(s *Session) Caller {
	c.session = s
	return c
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

// ErrEnded is the cause of a context of Hold whose key or session is no longer valid.
var ErrEnded = farm.Errorf(farm.CodeUnauthorized, "The API key of this request was revoked or has expired, or its browser has logged out.")

// Hold returns a context for the work of a request. It is canceled with ErrEnded within two seconds after the caller's key is
// revoked or expires, or its session ends, however long the request lasts. Of a caller that was not found here, the tenant and the id of the key say which
// key that is. Whoever calls Hold calls release at the end of the request, and ends ctx then.
func (r *Keys) Hold(ctx context.Context, c Caller) (held context.Context, release func()) {
	if c.settings && c.session == nil {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	h := &hold{ring: r, caller: c, ctx: ctx, cancel: cancel}
	h.again()
	return ctx, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.timer != nil {
			h.timer.Stop()
		}
	}
}

// hold looks at a key and a session every second. Requests that end sooner, which most do, cost a timer.
type hold struct {
	ring   *Keys
	caller Caller
	ctx    context.Context // of the request
	cancel context.CancelCauseFunc

	mu    sync.Mutex
	timer *time.Timer
}

// again sets the timer, unless the request is over.
func (h *hold) again() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx.Err() == nil {
		h.timer = time.AfterFunc(watch, h.check)
	}
}

func (h *hold) check() {
	if err := h.ring.Check(h.ctx, h.caller); err != nil {
		h.cancel(err)
		return
	}
	h.again()
}

// Check returns ErrEnded if a caller's key or session is no longer valid, as Hold does, for work that outlives its request.
func (r *Keys) Check(ctx context.Context, c Caller) error {
	if c.session != nil && c.session.over(ctx) {
		return ErrEnded
	}
	if !c.settings && r.refresh(ctx, time.Now().Add(-fresh)) == nil && !r.valid(ctx, c) {
		return ErrEnded
	}
	return nil
}

// valid reports whether a caller may continue, as far as is known.
func (r *Keys) valid(ctx context.Context, c Caller) bool {
	if c.KeyID == "" {
		return r.Open()
	}
	if c.sum == (store.KeySum{}) {
		known, err := r.IDs(ctx, c.Tenant)
		return err != nil || slices.Contains(known, c.KeyID)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	key, ok := r.set.Find(c.sum)
	return ok && !key.Expired(r.Now())
}

package access

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// ErrEnded is the cause of a context of Hold whose key is no longer valid.
var ErrEnded = farm.Errorf(farm.CodeUnauthorized, "The API key of this request was revoked or has expired.")

// Hold returns a context for the work of a request. It is canceled with ErrEnded within two seconds after the caller's key is
// revoked or expires, however long the request lasts. Of a caller that was not found here, the tenant and the id of the key say which
// key that is. Whoever calls Hold calls release at the end of the request, and ends ctx then.
func (r *Keys) Hold(ctx context.Context, c Caller) (held context.Context, release func()) {
	if c.settings {
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

// hold looks at a key every second. Requests that end sooner, which most do, cost a timer.
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
	if err := h.ring.refresh(h.ctx, time.Now().Add(-fresh)); err == nil && !h.ring.valid(h.ctx, h.caller) {
		h.cancel(ErrEnded)
		return
	}
	h.again()
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

package budget

import (
	"context"
	"errors"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

type holdKey struct{}

// With gives a request a Hold of its own, for a tenant, which Charge and Keep find in the context. The caller releases it when the
// request is over. patience is how long Charge waits; 0: as long as its context lasts.
func (b *Budget) With(ctx context.Context, tenant string, patience time.Duration) (context.Context, *Hold) {
	h := b.hold(tenant)
	h.patience = patience
	return context.WithValue(ctx, holdKey{}, h), h
}

// Renew is With for work that outlives the request that started it: the same budget and tenant, nothing held. It returns ctx and nil if
// ctx has no Hold.
func Renew(ctx context.Context) (context.Context, *Hold) {
	h := of(ctx)
	if h == nil {
		return ctx, nil
	}
	return h.budget.With(ctx, h.tenant, h.patience)
}

func of(ctx context.Context) *Hold {
	h, _ := ctx.Value(holdKey{}).(*Hold)
	return h
}

// Charge adds n bytes to the Hold of the request, as Hold.Add does. If the patience of With ends while it waits, the error is
// CodeExhausted. Without a Hold it does nothing.
func Charge(ctx context.Context, n int64) error {
	h := of(ctx)
	if h == nil {
		return nil
	}
	if h.patience > 0 {
		var done context.CancelFunc
		ctx, done = context.WithTimeoutCause(ctx, h.patience, errNoMemory)
		defer done()
	}
	err := h.Add(ctx, n)
	if errors.Is(err, errNoMemory) {
		return farm.Errorf(farm.CodeExhausted, "%s", noMemory)
	}
	return err
}

const noMemory = "This server has no memory for a request of this size now. Send it again later, or send less at once."

var errNoMemory = errors.New("no memory became free in time")

// Held is how many bytes the request of ctx holds.
func Held(ctx context.Context) int64 { return of(ctx).Bytes() }

// Without hides the Hold of the request from code that would give it back while other code needs it.
func Without(ctx context.Context) context.Context {
	return context.WithValue(ctx, holdKey{}, (*Hold)(nil))
}

// Keep gives back what the request was charged beyond n bytes, or beyond what Pin said: it is not needed any more.
func Keep(ctx context.Context, n int64) {
	h := of(ctx)
	if h == nil {
		return
	}
	h.mu.Lock()
	n = max(n, h.pinned)
	h.mu.Unlock()
	h.Keep(n)
}

// Pin says that n bytes stay in memory until the request is over, whatever Keep was called with.
func Pin(ctx context.Context, n int64) {
	h := of(ctx)
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pinned = n
}

package budget

import "context"

type holdKey struct{}

// With gives a request a Hold of its own, for a tenant, which Charge and Settle find in the context. The caller releases it when the
// request is over.
func (b *Budget) With(ctx context.Context, tenant string) (context.Context, *Hold) {
	h := b.hold(tenant)
	return context.WithValue(ctx, holdKey{}, h), h
}

// Renew is With for work that outlives the request that started it: the same budget and tenant, nothing held. It returns ctx and nil if
// ctx has no Hold.
func Renew(ctx context.Context) (context.Context, *Hold) {
	h, _ := ctx.Value(holdKey{}).(*Hold)
	if h == nil {
		return ctx, nil
	}
	return h.budget.With(ctx, h.tenant)
}

// Charge adds n bytes to the Hold of the request, as Hold.Add does. Without one it does nothing.
func Charge(ctx context.Context, n int64) error {
	h, _ := ctx.Value(holdKey{}).(*Hold)
	return h.Add(ctx, n)
}

// Settle gives back what the request was charged so far: nothing of it is needed any more.
func Settle(ctx context.Context) {
	h, _ := ctx.Value(holdKey{}).(*Hold)
	h.Release()
}

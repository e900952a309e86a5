package budget

import (
	"context"
	"fmt"
	"sync"
)

// Places is a number of places for work, shared as a Budget shares bytes: one tenant has at most half of those that others leave, beyond
// one; its requests are granted in the order in which they came, and tenants take turns.
type Places struct{ pool *pool }

// NewPlaces makes n places, at least 2.
func NewPlaces(n int) *Places { return &Places{newPool(int64(max(n, 2)))} }

// Place is a request for a place.
type Place struct {
	pool   *pool
	waiter *waiter
	once   sync.Once
}

// Ask requests a place for a tenant. It does not wait.
func (p *Places) Ask(tenant string) *Place {
	return &Place{pool: p.pool, waiter: p.pool.ask(tenant, 1)}
}

// Granted is closed when the tenant has the place.
func (p *Place) Granted() <-chan struct{} { return p.waiter.granted }

// Leave gives the place back, or ends the request if it was not granted. A second call does nothing.
func (p *Place) Leave() { p.once.Do(func() { p.pool.leave(p.waiter) }) }

// Core waits for one of the process's cores, for work on size bytes that waits for nothing, such as decoding a body. leave gives the core back; a
// second call does nothing. One tenant has at most half of the cores that others leave, beyond one: without this, the requests of one caller would be in
// front of everybody's in the queues of Go's scheduler, 10 ms each. Up to SmallBytes, without a Hold (see Budget.With), and of a nil Budget it does not
// wait. The error is that of ctx.
func Core(ctx context.Context, size int) (leave func(), err error) {
	h := of(ctx)
	if size <= SmallBytes || h == nil || h.budget == nil {
		return func() {}, nil
	}
	place := h.budget.cores.Ask(h.tenant)
	select {
	case <-place.Granted():
	case <-ctx.Done():
		if !place.waiter.isGranted() {
			place.Leave()
			return nil, fmt.Errorf("wait for a core: %w", context.Cause(ctx))
		}
	}
	return place.Leave, nil
}

type coreKey struct{}

// Decoding is Core for code that decodes a body and then calls what may wait for long, which begins with Decoded.
func Decoding(ctx context.Context, size int) (_ context.Context, leave func(), err error) {
	if leave, err = Core(ctx, size); err != nil {
		return ctx, nil, err
	}
	return context.WithValue(ctx, coreKey{}, leave), leave, nil
}

// Decoded gives back the core of Decoding, if ctx is of it.
func Decoded(ctx context.Context) {
	if leave, ok := ctx.Value(coreKey{}).(func()); ok {
		leave()
	}
}

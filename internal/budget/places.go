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

// core is the share of the process's cores that one request has.
type core struct {
	places *Places
	tenant string

	mu    sync.Mutex
	free  int    // size of the work that was done without a core
	taken *Place // by TakeCore
}

// wait waits for a core for work of some size. nil is none: the work is small, or the request has a core.
func (c *core) wait(ctx context.Context, size int) (*Place, error) {
	if c == nil {
		return nil, nil
	}
	if c.has(size) {
		return nil, nil
	}
	place := c.places.Ask(c.tenant)
	select {
	case <-place.Granted():
	case <-ctx.Done():
		if !place.waiter.isGranted() {
			place.Leave()
			return nil, fmt.Errorf("wait for a core: %w", context.Cause(ctx))
		}
	}
	return place, nil
}

// has reports whether work of some size needs no further core.
func (c *core) has(size int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.taken != nil {
		return true
	}
	if c.free+size > SmallBytes {
		return false
	}
	c.free += size
	return true
}

// leave gives back what TakeCore took.
func (c *core) leave() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.taken != nil {
		c.taken.Leave()
		c.taken = nil
	}
}

// Core waits for one of the process's cores, for work on size bytes that waits for nothing, such as decoding a document. leave gives the core back; a
// second call does nothing. One tenant has at most half of the cores that others leave, beyond one: without this, the requests of one caller would be in
// front of everybody's in the queues of Go's scheduler, 10 ms each. It does not wait for the first SmallBytes of all work of a request, while the request
// has a core by TakeCore, without a Hold (see Budget.With), and of a nil Budget. The error is that of ctx.
func Core(ctx context.Context, size int) (leave func(), err error) {
	h := of(ctx)
	if h == nil {
		return func() {}, nil
	}
	place, err := h.core.wait(ctx, size)
	if err != nil {
		return nil, err
	}
	if place == nil {
		return func() {}, nil
	}
	return place.Leave, nil
}

// TakeCore is Core for work that ends in other code than it begins: the request has the core until LeaveCore, or until its Hold is released. Whoever
// waits for something, such as another server or the caller, calls LeaveCore first: else two tenants that wait could keep all cores from others.
func TakeCore(ctx context.Context, size int) error {
	h := of(ctx)
	if h == nil {
		return nil
	}
	place, err := h.core.wait(ctx, size)
	if place == nil {
		return err
	}
	h.core.mu.Lock()
	defer h.core.mu.Unlock()
	if h.core.taken != nil { // meanwhile
		place.Leave()
		return nil
	}
	h.core.taken = place
	return nil
}

// LeaveCore gives back the core of TakeCore or Decoding, if the request has one.
func LeaveCore(ctx context.Context) {
	if h := of(ctx); h != nil {
		h.core.leave()
	}
}

package budget

import (
	"container/list"
	"context"
	"fmt"
	"sync"
)

// Budget is a weighted semaphore of bytes that is fair between tenants. A nil Budget grants everything.
type Budget struct {
	size, share int64

	mu      sync.Mutex
	used    int64
	waiting int64
	tenants map[string]*account
	turns   *list.List // accounts with waiters; the first has the next turn
	blocked bool       // the next turn waits for bytes of others
	waited  uint64
}

// account is what one tenant holds and waits for.
type account struct {
	name    string
	held    int64
	waiters list.List // of *waiter, oldest first
	turn    *list.Element
}

// waiter is a request that was not granted yet.
type waiter struct {
	bytes   int64
	granted chan struct{}
}

// New makes a budget of a number of bytes, at least 2.
func New(size int64) *Budget {
	size = max(size, 2)
	return &Budget{size: size, share: size / 2, tenants: map[string]*account{}, turns: list.New()}
}

// Share is the most that one tenant can hold, in bytes: half of the budget. A larger request is granted as one of this size, so it
// waits until its tenant holds nothing else.
func (b *Budget) Share() int64 {
	if b == nil {
		return 1 << 62
	}
	return b.share
}

// Acquire waits until a tenant may hold n more bytes. n above Share counts as Share. The error is that of ctx.
func (b *Budget) Acquire(ctx context.Context, tenant string, n int64) (*Hold, error) {
	if b == nil || n <= 0 {
		return &Hold{budget: b, tenant: tenant}, nil
	}
	n = min(n, b.share)
	b.mu.Lock()
	a := b.account(tenant)
	w := &waiter{bytes: n, granted: make(chan struct{})}
	place := a.waiters.PushBack(w)
	b.waiting += n
	if a.turn == nil {
		a.turn = b.turns.PushBack(a)
	}
	b.grant()
	select {
	case <-w.granted:
		b.mu.Unlock()
		return &Hold{budget: b, tenant: tenant, bytes: n}, nil
	default:
		b.waited++
	}
	b.mu.Unlock()
	select {
	case <-w.granted:
		return &Hold{budget: b, tenant: tenant, bytes: n}, nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-w.granted: // in the last moment
		b.give(a, n)
	default:
		b.waiting -= n
		a.waiters.Remove(place)
		b.settle(a)
		b.grant() // the next in line may be smaller
	}
	return nil, fmt.Errorf("wait for memory: %w", context.Cause(ctx))
}

// TryAcquire is Acquire for callers that cannot wait: nil, false means that there is no memory for n bytes now. Nobody who waits is
// overtaken. n above Share is refused.
func (b *Budget) TryAcquire(tenant string, n int64) (*Hold, bool) {
	h := &Hold{budget: b, tenant: tenant}
	if !h.Grow(n) {
		return nil, false
	}
	return h, true
}

// account finds or makes the account of a tenant.
func (b *Budget) account(tenant string) *account {
	a := b.tenants[tenant]
	if a == nil {
		a = &account{name: tenant}
		b.tenants[tenant] = a
	}
	return a
}

// grant serves the waiters that can be served, tenant by tenant. A tenant whose own share is used up is passed over: it waits for
// itself. One that waits for bytes of others blocks those behind it, so a large request is not overtaken for ever.
func (b *Budget) grant() {
	b.blocked = false
	for e := b.turns.Front(); e != nil; {
		a := e.Value.(*account)                //nolint:forcetypeassert // turns has accounts only
		w := a.waiters.Front().Value.(*waiter) //nolint:forcetypeassert // waiters has waiters only
		if a.held+w.bytes > b.share {
			e = e.Next()
			continue
		}
		if b.used+w.bytes > b.size {
			b.blocked = true
			return
		}
		a.waiters.Remove(a.waiters.Front())
		a.held += w.bytes
		b.used += w.bytes
		b.waiting -= w.bytes
		close(w.granted)
		b.turns.MoveToBack(e)
		b.settle(a)
		e = b.turns.Front()
	}
}

// give takes bytes back from an account.
func (b *Budget) give(a *account, n int64) {
	a.held -= n
	b.used -= n
	b.settle(a)
	b.grant()
}

// settle ends the turns of an account that waits for nothing, and forgets one that holds nothing either.
func (b *Budget) settle(a *account) {
	if a.waiters.Len() > 0 {
		return
	}
	if a.turn != nil {
		b.turns.Remove(a.turn)
		a.turn = nil
	}
	if a.held == 0 {
		delete(b.tenants, a.name)
	}
}

// Stats are the figures of a budget, in bytes unless they say otherwise.
type Stats struct {
	Size    int64
	Used    int64
	Waiting int64  // asked for and not granted yet
	Tenants int    // that hold or wait
	Waited  uint64 // number of requests that had to wait
}

// Stats reads the figures. Those of a nil Budget are zero.
func (b *Budget) Stats() Stats {
	if b == nil {
		return Stats{}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return Stats{Size: b.size, Used: b.used, Waiting: b.waiting, Tenants: len(b.tenants), Waited: b.waited}
}

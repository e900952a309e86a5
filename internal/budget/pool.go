package budget

import (
	"container/list"
	"context"
	"sync"
)

// pool is a weighted semaphore of bytes that is fair between tenants.
type pool struct {
	size, share int64

	mu      sync.Mutex
	used    int64
	lasting int64 // of used: what lasts
	waiting int64
	waited  uint64
	tenants map[string]*account
	turns   *list.List // accounts with waiters; the first has the next turn
	blocked *waiter    // the first that waits for bytes of others; nil: none
	passed  int64      // the sum of passed of all accounts
}

// account is what one tenant holds and waits for.
type account struct {
	name    string
	held    int64 // without what lasts
	lasting int64
	passed  int64     // of held: at most so much was granted while another waiter was blocked
	waiters list.List // of *waiter, oldest first
	turn    *list.Element
}

// waiter is a request of a tenant. It is granted when its channel is closed.
type waiter struct {
	of      *account
	bytes   int64
	granted chan struct{}
	element *list.Element // of the account's waiters
}

func newPool(size int64) *pool {
	return &pool{size: size, share: size / 2, tenants: map[string]*account{}, turns: list.New()}
}

// acquire waits until a tenant may hold n more bytes, at most a share. It returns n, or the share if n is larger. The error is that of ctx.
func (p *pool) acquire(ctx context.Context, tenant string, n int64) (int64, error) {
	w := p.ask(tenant, n)
	if w.isGranted() {
		return w.bytes, nil
	}
	select {
	case <-w.granted:
		return w.bytes, nil
	case <-ctx.Done():
		p.leave(w)
		return 0, context.Cause(ctx)
	}
}

// ask begins a request for n bytes, at most a share, which leave ends.
func (p *pool) ask(tenant string, n int64) *waiter {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.account(tenant)
	w := &waiter{of: a, bytes: min(n, p.share), granted: make(chan struct{})}
	w.element = a.waiters.PushBack(w)
	p.waiting += w.bytes
	if a.turn == nil {
		a.turn = p.turns.PushBack(a)
	}
	p.grant()
	if !w.isGranted() {
		p.waited++
	}
	return w
}

// leave gives back what was granted, or ends the wait for it.
func (p *pool) leave(w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.isGranted() {
		p.take(w.of, w.bytes, false)
		return
	}
	p.waiting -= w.bytes
	w.of.waiters.Remove(w.element)
	if w == p.blocked {
		p.unblock()
	}
	p.settle(w.of)
	p.grant() // the next in line may be smaller
}

func (w *waiter) isGranted() bool {
	select {
	case <-w.granted:
		return true
	default:
		return false
	}
}

// try grants n bytes to a tenant if they are free and no waiting caller is delayed, but for those of the tenant that came later than the request
// that has own bytes and grows; 0: none does.
func (p *pool) try(tenant string, n, own int64, lasting bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.account(tenant)
	defer p.settle(a)
	if !p.fits(n) {
		return false
	}
	if !lasting {
		if own == 0 && a.waiters.Len() > 0 || !p.admits(a, n, own) {
			return false
		}
		p.give(a, n)
		return true
	}
	if a.lasting+n > p.size/lastingPart || p.lasting+n > p.size-p.share {
		return false
	}
	a.lasting += n
	p.lasting += n
	p.used += n
	return true
}

// admits reports whether a tenant may hold n bytes more, for a request that has own bytes: one request of any size up to the share, and then half of
// what other tenants leave. So n tenants that take all they can leave one part of 2^n, and the next tenant finds room.
func (p *pool) admits(a *account, n, own int64) bool {
	others := p.used - a.held
	return own+n <= p.share && (a.held == own || a.held+n <= (p.size-others)/2)
}

// fits reports whether n bytes are free and would be left once the blocked waiter is served: it waits for what was held before, never for
// what passes it, and never for what lasts.
func (p *pool) fits(n int64) bool {
	return p.used+n <= p.size && (p.blocked == nil || p.lasting+p.passed+n+p.blocked.bytes <= p.size)
}

// give counts bytes that are granted.
func (p *pool) give(a *account, n int64) {
	a.held += n
	p.used += n
	if p.blocked != nil {
		a.passed += n
		p.passed += n
	}
}

// unblock forgets the blocked waiter, which was served or has left.
func (p *pool) unblock() {
	p.blocked, p.passed = nil, 0
	for _, a := range p.tenants {
		a.passed = 0
	}
}

// release takes n bytes back from a tenant.
func (p *pool) release(tenant string, n int64, lasting bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.take(p.account(tenant), n, lasting)
}

func (p *pool) take(a *account, n int64, lasting bool) {
	if lasting {
		a.lasting -= n
		p.lasting -= n
	} else {
		a.held -= n
	}
	p.used -= n
	if more := a.passed - a.held; more > 0 { // what was granted earlier counts as given back first
		a.passed -= more
		p.passed -= more
	}
	p.settle(a)
	p.grant()
}

// account finds or makes the account of a tenant.
func (p *pool) account(tenant string) *account {
	a := p.tenants[tenant]
	if a == nil {
		a = &account{name: tenant}
		p.tenants[tenant] = a
	}
	return a
}

// grant serves the waiters that can be served, tenant by tenant. A tenant whose own share is used up is passed over: it waits for
// itself. The first that waits for bytes of others is blocked until it is served or leaves; the others pass it if they fit beside it.
func (p *pool) grant() {
	for e := p.turns.Front(); e != nil; {
		a := e.Value.(*account)
		w := a.waiters.Front().Value.(*waiter)
		if a.held+w.bytes > p.share {
			e = e.Next()
			continue
		}
		admitted := p.admits(a, w.bytes, 0)
		if w == p.blocked && admitted && p.used+w.bytes <= p.size {
			p.unblock()
		}
		if w == p.blocked || !admitted || !p.fits(w.bytes) {
			if p.blocked == nil {
				p.blocked = w
			}
			e = e.Next()
			continue
		}
		a.waiters.Remove(a.waiters.Front())
		p.give(a, w.bytes)
		p.waiting -= w.bytes
		close(w.granted)
		p.turns.MoveToBack(e)
		p.settle(a)
		e = p.turns.Front()
	}
}

// settle ends the turns of an account that waits for nothing, and forgets one that holds nothing either.
func (p *pool) settle(a *account) {
	if a.waiters.Len() > 0 {
		return
	}
	if a.turn != nil {
		p.turns.Remove(a.turn)
		a.turn = nil
	}
	if a.held+a.lasting == 0 {
		delete(p.tenants, a.name)
	}
}

func (p *pool) addTo(s *Stats) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.Used += p.used
	s.Waiting += p.waiting
	s.Waited += p.waited
	s.Accounts += len(p.tenants)
}

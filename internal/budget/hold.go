package budget

import (
	"context"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Hold is a number of bytes that a tenant holds. It is safe for concurrent use. A nil Hold holds nothing.
type Hold struct {
	budget   *Budget
	tenant   string
	patience time.Duration // of Charge; 0: without limit

	mu           sync.Mutex
	small, large int64 // bytes of each pool
	pinned       int64 // what the function Keep leaves
}

// Bytes is how many bytes are held.
func (h *Hold) Bytes() int64 {
	if h == nil {
		return 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.small + h.large
}

// Add adds n bytes. All that a Hold has above its tenant's share counts as the share. The first large request of a Hold waits for its
// turn, and so does the first small one before it. Later ones do not wait, since two that wait for each other would wait for ever: what is
// not there then is refused with CodeExhausted. The error of one that waited is that of ctx.
func (h *Hold) Add(ctx context.Context, n int64) error {
	if h == nil || h.budget == nil || n <= 0 {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.large > 0 {
		n = min(n, h.budget.large.share-h.large)
		if n <= 0 || h.try(n) {
			return nil
		}
		return farm.Errorf(farm.CodeExhausted, "%s", noMemory)
	}
	if h.small > 0 {
		if h.try(n) {
			return nil
		}
		n = max(n, SmallBytes+1) // who holds small bytes does not wait for small bytes
	}
	p := h.budget.pool(n)
	got, err := p.acquire(ctx, h.tenant, n)
	if err != nil {
		return err
	}
	h.count(p, got)
	return nil
}

// Grow adds n bytes if they are there now, and reports whether they are. It overtakes no waiting caller.
func (h *Hold) Grow(n int64) bool {
	if h == nil || h.budget == nil || n <= 0 {
		return true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.try(n)
}

func (h *Hold) try(n int64) bool {
	p := h.budget.pool(n)
	ok := p.try(h.tenant, n)
	if ok {
		h.count(p, n)
	}
	return ok
}

func (h *Hold) count(p *pool, n int64) {
	if p == h.budget.small {
		h.small += n
	} else {
		h.large += n
	}
}

// Keep gives back all but n bytes. It does nothing if fewer are held.
func (h *Hold) Keep(n int64) {
	if h == nil || h.budget == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	back := h.small + h.large - max(n, 0)
	if k := min(back, h.large); k > 0 {
		h.large -= k
		back -= k
		h.budget.large.release(h.tenant, k)
	}
	if back > 0 {
		h.small -= back
		h.budget.small.release(h.tenant, back)
	}
}

// Release gives all bytes back. A second call does nothing.
func (h *Hold) Release() { h.Keep(0) }

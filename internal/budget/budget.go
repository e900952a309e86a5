package budget

import "context"

// smallPart is the part of a budget that is kept for small requests: one eighth. smallest is the smallest budget.
const (
	smallPart = 8
	smallest  = 16 << 20
)

// SmallBytes is the largest request that counts as small. It covers the body, the frames and the events of ordinary calls.
const SmallBytes = 64 << 10

// Budget is a weighted semaphore of bytes that is fair between tenants. A nil Budget grants everything.
type Budget struct{ small, large *pool }

// New makes a budget of a number of bytes, at least 16 MiB.
func New(size int64) *Budget {
	size = max(size, smallest)
	return &Budget{small: newPool(size / smallPart), large: newPool(size - size/smallPart)}
}

// Acquire waits until a tenant may hold n bytes. n above the tenant's share counts as the share: such a request waits until its tenant
// holds nothing else. The error is that of ctx.
func (b *Budget) Acquire(ctx context.Context, tenant string, n int64) (*Hold, error) {
	h := b.hold(tenant)
	if err := h.Add(ctx, n); err != nil {
		return nil, err
	}
	return h, nil
}

// TryAcquire is Acquire for callers that cannot wait: nil, false means that there is no memory for n bytes now. No waiting caller is
// overtaken. n above the tenant's share is refused.
func (b *Budget) TryAcquire(tenant string, n int64) (*Hold, bool) {
	h := b.hold(tenant)
	if !h.Grow(n) {
		return nil, false
	}
	return h, true
}

func (b *Budget) hold(tenant string) *Hold { return &Hold{budget: b, tenant: tenant} }

// pool is the one that serves a request for n bytes.
func (b *Budget) pool(n int64) *pool {
	if n <= SmallBytes {
		return b.small
	}
	return b.large
}

// Share is the most that one tenant can hold at once by requests above SmallBytes.
func (b *Budget) Share() int64 {
	if b == nil {
		return 1 << 62
	}
	return b.large.share
}

// Stats are the figures of a budget, in bytes unless they say otherwise.
type Stats struct {
	Size     int64
	Used     int64
	Waiting  int64  // asked for and not granted yet
	Accounts int    // tenants that hold or wait; one that does so for small and for large requests counts twice
	Waited   uint64 // number of requests that had to wait
}

// Stats reads the figures. Those of a nil Budget are zero.
func (b *Budget) Stats() Stats {
	if b == nil {
		return Stats{}
	}
	s := Stats{Size: b.small.size + b.large.size}
	b.small.addTo(&s)
	b.large.addTo(&s)
	return s
}

// Package budget limits the bytes that a process holds in memory for its callers: request bodies, answers, frames, buffers of uploads.
//
// An API has one Budget, and so has a worker. Whoever is about to hold bytes for a tenant acquires them first and releases the Hold afterwards:
//
//	hold, err := memory.Acquire(ctx, tenant, size)
//	if err != nil {
//		return err
//	}
//	defer hold.Release()
//
// The API gives each request a Hold of its own in its context (With); code below adds to it with Charge and gives it back early with
// Keep.
//
// What may last as long as a caller likes (a terminal, an answer to a slow reader) has a Hold of its own kind (Lasting).
//
// Guarantees: the sum of all holds never exceeds the size of the budget. One tenant has at most half of what the others leave, beyond its
// first request, so at most half of it: tenants with many requests leave room for the next one; for what lasts it has an eighth. Requests of one tenant
// are granted in the order in which they came; tenants take turns. An eighth of the budget is kept for
// small requests, so that large ones do not delay them. A request that waits for bytes of others is passed only by those that fit beside it,
// so it waits for what was held before, and others do not wait for it. It never waits for what lasts. It waits for ever only if other holds
// are never released.
//
// Rules for users, so that nothing deadlocks: acquire the most that is needed, once, and give back what is not needed (Hold.Keep). Do
// not wait for memory while a Hold is held whose release depends on it: use Hold.Grow or TryAcquire, which do not wait, and spill to
// S3 or refuse where they do. What waits while it holds small bytes gives these up first: Hold.Park. Work that other work waits for while it holds memory, as requests wait for jobs, has a Budget of its own. ReadAll, whose senders may be slow, acquires in steps, of which only the first waits.
//
// Places shares places for work in the same way, and Core the cores of the process for work on large bodies.
package budget

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/prometheus/client_golang/prometheus"
)

const (
	// smallPart is the part of a budget that is kept for small requests: one eighth.
	smallPart = 8
	// lastingPart is the part of the rest that one tenant may hold for what lasts: one eighth. All tenants together have half.
	lastingPart = 8
	// smallest is the smallest budget.
	smallest = 16 << 20
)

// SmallBytes is the largest request that counts as small. It covers the body, the frames and the events of ordinary calls.
const SmallBytes = 64 << 10

// Budget is a weighted semaphore of bytes that is fair between tenants. A nil Budget grants everything.
type Budget struct {
	small, large *pool
	cores        *Places
}

// New makes a budget of a number of bytes, at least 16 MiB.
func New(size int64) *Budget {
	size = max(size, smallest)
	return &Budget{small: newPool(size / smallPart), large: newPool(size - size/smallPart), cores: NewPlaces(runtime.GOMAXPROCS(0))}
}

// Acquire waits until a tenant may hold n bytes. n above the tenant's share counts as the share: such a request waits until its tenant
// holds nothing else. The error is that of ctx.
func (b *Budget) Acquire(ctx context.Context, tenant string, n int64) (*Hold, error) {
	h := &Hold{budget: b, tenant: tenant}
	if err := h.Add(ctx, n); err != nil {
		return nil, err
	}
	return h, nil
}

// TryAcquire is Acquire for callers that cannot wait: nil, false means that there is no memory for n bytes now. No waiting caller is
// delayed. n above the tenant's share is refused.
func (b *Budget) TryAcquire(tenant string, n int64) (*Hold, bool) {
	h := &Hold{budget: b, tenant: tenant}
	if !h.Grow(n) {
		return nil, false
	}
	return h, true
}

// Lasting makes an empty Hold for bytes that may be held without an end. Grow adds to it; it never waits, and nobody waits for it. An eighth of
// the bytes for large requests is all that a tenant has for such holds, beside its share.
func (b *Budget) Lasting(tenant string) *Hold {
	return &Hold{budget: b, tenant: tenant, lasting: true}
}

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

const (
	// goShare is the part of a cgroup's limit that the Go runtime may use before it collects more often. The rest is for stacks of C
	// code, the page cache that cannot be dropped, and the time that a collection takes.
	goShare = 0.8
	// largest is the largest budget that Size chooses by itself.
	largest = 2 << 30
)

// Limits are the limits on the memory of this process and of its machine, in bytes; 0 means unknown or none.
type Limits struct {
	Process int64 // the smaller of Group and GOMEMLIMIT
	Group   int64 // of the process's cgroup
	Machine int64
}

// ReadLimits reads the limits of this process, and sets the memory limit of the Go runtime to four fifths of the cgroup's limit, unless
// GOMEMLIMIT is set.
func ReadLimits() (Limits, error) {
	var l Limits
	if total, err := memlimit.FromSystem(); err == nil && total < math.MaxInt64 {
		l.Machine = int64(total) //nolint:gosec // below MaxInt64
	}
	group, err := memlimit.FromCgroup()
	if err == nil && group < math.MaxInt64 && (l.Machine == 0 || int64(group) < l.Machine) { //nolint:gosec // below MaxInt64
		l.Process, l.Group = int64(group), int64(group) //nolint:gosec // below MaxInt64
		if _, err := memlimit.Set(memlimit.WithRatio(goShare), memlimit.WithProvider(memlimit.Limit(group))); err != nil {
			return l, fmt.Errorf("set the memory limit of the Go runtime: %w", err)
		}
	}
	if limit := debug.SetMemoryLimit(-1); limit < math.MaxInt64 && (l.Process == 0 || limit < l.Process) {
		l.Process = limit
	}
	return l, nil
}

// Size is the size of a budget for a process with these limits: a quarter of its own, or an eighth of the machine's memory where it has
// none, between 16 MiB and 2 GiB. Three quarters are left for the rest of the process and for what the collector has not freed yet.
func (l Limits) Size() int64 {
	size := l.Machine / 8
	if l.Process > 0 {
		size = l.Process / 4
	}
	return min(max(size, smallest), largest)
}

// Collectors are the metrics of the budgets of a process, together.
func Collectors(all ...*Budget) []prometheus.Collector {
	sum := func(get func(Stats) int64) func() float64 {
		return func() (total float64) {
			for _, b := range all {
				total += float64(get(b.Stats()))
			}
			return total
		}
	}
	gauge := func(name, help string, get func(Stats) int64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, sum(get))
	}
	return []prometheus.Collector{
		gauge("sandfarm_memory_budget_bytes", "Bytes that this process may hold for its callers at once (memory_budget_mb).", func(s Stats) int64 { return s.Size }),
		gauge("sandfarm_memory_budget_used_bytes", "Bytes that this process holds for its callers.", func(s Stats) int64 { return s.Used }),
		gauge("sandfarm_memory_budget_waiting_bytes", "Bytes that callers wait for.", func(s Stats) int64 { return s.Waiting }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "sandfarm_memory_budget_waits_total", Help: "Requests for memory that had to wait.",
		}, sum(func(s Stats) int64 { return int64(s.Waited) })), //nolint:gosec // a count
	}
}

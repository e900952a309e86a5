package budget_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/sandfarm/sandfarm/internal/budget"
)

// model drives a budget with random steps and knows who holds what.
type model struct {
	t       *testing.T
	b       *budget.Budget
	random  *rand.Rand
	held    []*claim
	pending []*claim
}

type claim struct {
	tenant  string
	bytes   int64
	hold    *budget.Hold
	lasting bool
	cancel  context.CancelFunc
	failed  bool
	before  []*claim // once it waits alone for large bytes: what was held then and may come back
}

// TestRandomSteps: whatever callers do, the sums stay within their limits, a tenant's requests are granted in order, nobody waits for what
// lasts, who waits alone does not wait for what was granted later, and at the end nothing is left.
func TestRandomSteps(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		synctest.Test(t, func(t *testing.T) {
			m := &model{t: t, b: budget.New(size), random: rand.New(rand.NewPCG(seed, 1))}
			for range 150 {
				m.step()
				synctest.Wait()
				m.check()
			}
			for _, lasting := range []bool{false, true} { // what lasts goes last: nobody waits for it
				for i := m.next(lasting); i >= 0; i = m.next(lasting) {
					m.release(i)
					synctest.Wait()
					m.check()
				}
				if len(m.pending) > 0 {
					t.Fatalf("seed %d: %d requests wait, and nothing is held but what lasts", seed, len(m.pending))
				}
			}
			if s := m.b.Stats(); s.Used != 0 || s.Waiting != 0 || s.Accounts != 0 {
				t.Errorf("seed %d: at the end %+v", seed, s)
			}
		})
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func (m *model) step() {
	tenant := string('a' + rune(m.random.IntN(6)))
	n := budget.SmallBytes + 1 + m.random.Int64N(10*mib)>>m.random.IntN(4)
	if m.random.IntN(3) == 0 {
		n = 1 + m.random.Int64N(budget.SmallBytes)
	}
	switch k := m.random.IntN(13); {
	case k < 1:
		m.ask(tenant, n)
	case k < 4:
		if hold, ok := m.b.TryAcquire(tenant, n); ok {
			m.held = append(m.held, &claim{tenant: tenant, bytes: n, hold: hold})
		}
	case k < 5 && len(m.held) > 0:
		c := m.held[m.random.IntN(len(m.held))]
		if m.random.IntN(2) == 0 {
			c.hold.Grow(n)
		} else {
			gone, cancel := context.WithCancel(m.t.Context())
			cancel()
			_ = c.hold.Add(gone, n) // what it would wait for is refused
		}
		c.bytes = c.hold.Bytes()
	case k < 6 && len(m.held) > 0:
		c := m.held[m.random.IntN(len(m.held))]
		c.bytes = min(c.bytes, n)
		c.hold.Keep(n)
	case k < 7 && len(m.pending) > 0:
		m.pending[m.random.IntN(len(m.pending))].cancel()
	case k < 10 && len(m.held) > 0:
		m.release(m.random.IntN(len(m.held)/2 + 1)) // most are short
	case k >= 10:
		c := &claim{tenant: tenant, bytes: 1 + n/4, hold: m.b.Lasting(tenant), lasting: true}
		if c.hold.Grow(c.bytes) {
			m.held = append(m.held, c)
		}
	}
}

// next is the place of the first hold that lasts, or of the first that does not; -1: there is none.
func (m *model) next(lasting bool) int {
	return slices.IndexFunc(m.held, func(c *claim) bool { return c.lasting == lasting })
}

func (m *model) ask(tenant string, n int64) {
	ctx, cancel := context.WithCancel(m.t.Context())
	c := &claim{tenant: tenant, bytes: min(n, m.b.Share()), cancel: cancel}
	m.pending = append(m.pending, c)
	go func() {
		hold, err := m.b.Acquire(ctx, tenant, n)
		if err != nil {
			c.failed = true
			return
		}
		c.hold = hold
	}()
}

func (m *model) release(i int) {
	m.held[i].hold.Release()
	m.held = slices.Delete(m.held, i, i+1)
}

// check compares the budget with the model, once everybody waits.
func (m *model) check() {
	m.t.Helper()
	waits := map[string]bool{}
	var still []*claim
	for _, c := range m.pending { // oldest first
		class := fmt.Sprint(c.tenant, c.isSmall())
		switch {
		case c.failed:
		case c.hold == nil:
			waits[class] = true
			still = append(still, c)
		default:
			if waits[class] {
				m.t.Errorf("a request of %s for %d bytes was granted before an earlier one", c.tenant, c.bytes)
			}
			m.held = append(m.held, c)
		}
	}
	m.pending = still
	var used, waiting int64
	sums, lasting := map[string]int64{}, map[string]int64{}
	for _, c := range m.held {
		if c.lasting {
			lasting[c.tenant] += c.bytes
			lasting[""] += c.bytes
		} else {
			sums[c.tenant] += c.bytes
		}
		if c.hold.Bytes() != c.bytes {
			m.t.Errorf("a hold of %s has %d bytes, want %d", c.tenant, c.hold.Bytes(), c.bytes)
		}
		used += c.bytes
	}
	for _, c := range m.pending {
		waiting += c.bytes
	}
	if s := m.b.Stats(); s.Used != used || s.Waiting != waiting || s.Used > size {
		m.t.Errorf("the budget says %+v; held are %d bytes, waited for %d", s, used, waiting)
	}
	for tenant, sum := range sums {
		if sum > size/2 {
			m.t.Errorf("%s holds %d bytes, half of the budget is %d", tenant, sum, size/2)
		}
	}
	for tenant, sum := range lasting {
		if limit := map[bool]int64{true: large / 2, false: lasts}[tenant == ""]; sum > limit {
			m.t.Errorf("%d bytes of %q last, at most %d may", sum, tenant, limit)
		}
	}
	if used == lasting[""] && waiting > 0 {
		m.t.Errorf("%d bytes are waited for, and everything is free but what lasts", waiting)
	}
	m.checkAlone()
}

// checkAlone checks the request that waits alone for large bytes of others, if there is one: it does not wait for what was granted later.
func (m *model) checkAlone() {
	m.t.Helper()
	var alone []*claim
	for _, c := range m.pending {
		if !c.isSmall() {
			alone = append(alone, c)
		}
	}
	if len(alone) != 1 {
		for _, c := range alone {
			c.before = nil
		}
		return
	}
	c := alone[0]
	own := c.bytes
	for _, h := range m.held {
		if h.tenant == c.tenant && !h.lasting && !h.isSmall() {
			own += h.bytes
		}
	}
	if own > m.b.Share() { // it waits for its own tenant
		c.before = nil
		return
	}
	held := func(h *claim) bool { return slices.Contains(m.held, h) && h.bytes > 0 }
	if c.before == nil {
		for _, h := range m.held {
			if !h.lasting {
				c.before = append(c.before, h)
			}
		}
	}
	if !slices.ContainsFunc(c.before, held) {
		m.t.Errorf("a request of %s for %d bytes waits for what was granted later", c.tenant, c.bytes)
	}
}

func (c *claim) isSmall() bool { return c.bytes <= budget.SmallBytes }

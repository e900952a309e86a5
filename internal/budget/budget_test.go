package budget_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/sandfarm/sandfarm/internal/budget"
)

func TestShareIsTheLimitOfATenant(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		first, more int64
		fits        bool
	}{
		{first: 40, more: 9, fits: true},
		{first: 40, more: 10, fits: true},
		{first: 40, more: 11},
		{first: 51},
	} {
		b := budget.New(100)
		hold, ok := b.TryAcquire("a", c.first)
		if !ok {
			if c.fits || c.first <= b.Share() {
				t.Errorf("TryAcquire(%d) = false", c.first)
			}
			continue
		}
		if got := hold.Grow(c.more); got != c.fits {
			t.Errorf("%d, then Grow(%d) = %v", c.first, c.more, got)
		}
		hold.Release()
		hold.Release()
		if diff := cmp.Diff(budget.Stats{Size: 100}, b.Stats()); diff != "" {
			t.Errorf("after Release (-want +got):\n%s", diff)
		}
	}
}

// A request larger than the share is granted as one of the share: its tenant then holds nothing else.
func TestLargeRequestIsGrantedAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := budget.New(100)
		small, _ := b.TryAcquire("a", 1)
		granted := false
		var large *budget.Hold
		go func() {
			large, _ = b.Acquire(t.Context(), "a", 1000)
			granted = true
		}()
		synctest.Wait()
		if granted {
			t.Error("granted while its tenant held a byte")
		}
		small.Release()
		synctest.Wait()
		if !granted || large.Bytes() != 50 {
			t.Errorf("after the release: granted %v, %d bytes; want 50", granted, large.Bytes())
		}
		other, ok := b.TryAcquire("b", 50)
		if !ok {
			t.Error("another tenant did not get the other half")
		}
		other.Release()
		large.Keep(20)
		if got := b.Stats().Used; got != 20 {
			t.Errorf("after Keep(20) %d bytes are used", got)
		}
		large.Release()
	})
}

// One tenant's thousand requests do not delay another's: tenants take turns.
func TestTenantsTakeTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := budget.New(4)
		one, _ := b.TryAcquire("x", 2)
		two, _ := b.TryAcquire("y", 2)
		var order []string
		holds := make(chan *budget.Hold, 100)
		ask := func(tenant string, n int) {
			for i := range n {
				go func() {
					hold, err := b.Acquire(t.Context(), tenant, 2)
					if err != nil {
						t.Errorf("Acquire: %v", err)
					}
					order = append(order, fmt.Sprint(tenant, i))
					holds <- hold
				}()
				synctest.Wait()
			}
		}
		ask("loud", 5)
		ask("quiet", 2)
		two.Release() // one place: what follows is serial
		for range 7 {
			synctest.Wait()
			(<-holds).Release()
		}
		one.Release()
		want := []string{"loud0", "quiet0", "loud1", "quiet1", "loud2", "loud3", "loud4"}
		if diff := cmp.Diff(want, order); diff != "" {
			t.Errorf("order (-want +got):\n%s", diff)
		}
	})
}

func TestCancelledRequestLetsTheNextOnePass(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := budget.New(100)
		one, _ := b.TryAcquire("a", 30)
		two, _ := b.TryAcquire("b", 50)
		ctx, cancel := context.WithCancelCause(t.Context())
		left := errors.New("the caller has left")
		var failed error
		go func() { _, failed = b.Acquire(ctx, "c", 40) }()
		synctest.Wait()
		if _, ok := b.TryAcquire("d", 10); ok {
			t.Error("TryAcquire overtook a request that waits")
		}
		var next *budget.Hold
		go func() { next, _ = b.Acquire(t.Context(), "d", 10) }()
		synctest.Wait()
		if next != nil {
			t.Error("a request overtook one that came earlier")
		}
		cancel(left)
		synctest.Wait()
		if !errors.Is(failed, left) || next == nil {
			t.Errorf("after the cancel: %v, next %v", failed, next)
		}
		for _, h := range []*budget.Hold{one, two, next} {
			h.Release()
		}
		if diff := cmp.Diff(budget.Stats{Size: 100, Waited: 2}, b.Stats()); diff != "" {
			t.Errorf("at the end (-want +got):\n%s", diff)
		}
	})
}

// model drives a budget with random steps and knows who holds what.
type model struct {
	t       *testing.T
	b       *budget.Budget
	random  *rand.Rand
	held    []*claim
	pending []*claim
}

type claim struct {
	tenant string
	bytes  int64
	hold   *budget.Hold
	cancel context.CancelFunc
	failed bool
}

// TestRandomSteps: whatever callers do, the sums stay within their limits, a tenant's requests are granted in order, nobody waits while
// everything is free, and at the end nothing is left.
func TestRandomSteps(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		synctest.Test(t, func(t *testing.T) {
			m := &model{t: t, b: budget.New(100), random: rand.New(rand.NewPCG(seed, 1))}
			for range 150 {
				m.step()
				synctest.Wait()
				m.check()
			}
			for len(m.held)+len(m.pending) > 0 {
				if len(m.held) == 0 {
					t.Fatalf("seed %d: %d requests wait, and nobody holds anything", seed, len(m.pending))
				}
				m.release(0)
				synctest.Wait()
				m.check()
			}
			if s := m.b.Stats(); s.Used != 0 || s.Waiting != 0 || s.Tenants != 0 {
				t.Errorf("seed %d: at the end %+v", seed, s)
			}
		})
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func (m *model) step() {
	tenant := string('a' + rune(m.random.IntN(4)))
	n := 1 + m.random.Int64N(70)
	switch k := m.random.IntN(10); {
	case k < 4:
		m.ask(tenant, n)
	case k < 5:
		if hold, ok := m.b.TryAcquire(tenant, n); ok {
			m.held = append(m.held, &claim{tenant: tenant, bytes: n, hold: hold})
		}
	case k < 6 && len(m.held) > 0:
		if c := m.held[m.random.IntN(len(m.held))]; c.hold.Grow(n) {
			c.bytes += n
		}
	case k < 7 && len(m.held) > 0:
		c := m.held[m.random.IntN(len(m.held))]
		c.bytes = min(c.bytes, n)
		c.hold.Keep(n)
	case k < 8 && len(m.pending) > 0:
		m.pending[m.random.IntN(len(m.pending))].cancel()
	case len(m.held) > 0:
		m.release(m.random.IntN(len(m.held)))
	}
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
		switch {
		case c.failed:
		case c.hold == nil:
			waits[c.tenant] = true
			still = append(still, c)
		default:
			if waits[c.tenant] {
				m.t.Errorf("a request of %s for %d bytes was granted before an earlier one", c.tenant, c.bytes)
			}
			m.held = append(m.held, c)
		}
	}
	m.pending = still
	var used, waiting int64
	sums := map[string]int64{}
	for _, c := range m.held {
		if c.hold.Bytes() != c.bytes {
			m.t.Errorf("a hold of %s has %d bytes, want %d", c.tenant, c.hold.Bytes(), c.bytes)
		}
		used += c.bytes
		sums[c.tenant] += c.bytes
	}
	for _, c := range m.pending {
		waiting += c.bytes
	}
	if s := m.b.Stats(); s.Used != used || s.Waiting != waiting || s.Used > s.Size {
		m.t.Errorf("the budget says %+v; held are %d bytes, waited for %d", s, used, waiting)
	}
	for tenant, sum := range sums {
		if sum > m.b.Share() {
			m.t.Errorf("%s holds %d bytes, its share is %d", tenant, sum, m.b.Share())
		}
	}
	// Heads of tenants that could be served wait only if one of them is too large for what is free.
	able, blocked := 0, false
	heads := map[string]bool{}
	for _, c := range m.pending {
		if !heads[c.tenant] && sums[c.tenant]+c.bytes <= m.b.Share() {
			able++
			blocked = blocked || used+c.bytes > m.b.Stats().Size
		}
		heads[c.tenant] = true
	}
	if able > 0 && !blocked {
		m.t.Errorf("%d requests wait although they fit", able)
	}
}

func TestNilBudgetGrantsEverything(t *testing.T) {
	t.Parallel()
	var b *budget.Budget
	hold, err := b.Acquire(t.Context(), "a", 1<<50)
	if err != nil || !hold.Grow(1<<50) || b.Stats() != (budget.Stats{}) || b.Share() < 1<<60 {
		t.Errorf("Acquire = %v, %v", hold, err)
	}
	hold.Release()
	(*budget.Hold)(nil).Release()
}

func TestSizeFollowsTheLimits(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for _, c := range []struct {
		limits budget.Limits
		want   int64
	}{
		{budget.Limits{}, 16 * mib},
		{budget.Limits{Process: 32 * mib, Machine: 8192 * mib}, 16 * mib},
		{budget.Limits{Process: 256 * mib, Machine: 8192 * mib}, 64 * mib},
		{budget.Limits{Machine: 8192 * mib}, 1024 * mib},
		{budget.Limits{Machine: 1 << 40}, 2048 * mib},
	} {
		if got := c.limits.Size(); got != c.want {
			t.Errorf("%+v: Size = %d MiB, want %d", c.limits, got/mib, c.want/mib)
		}
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	b := budget.New(100)
	hold, _ := b.TryAcquire("a", 30)
	defer hold.Release()
	r := prometheus.NewRegistry()
	r.MustRegister(b.Collectors()...)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if problems, err := promlint.NewWithMetricFamilies(families).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("names: %v %v", problems, err)
	}
	got := map[string]float64{}
	for _, f := range families {
		got[f.GetName()] = f.GetMetric()[0].GetGauge().GetValue() + f.GetMetric()[0].GetCounter().GetValue()
	}
	want := map[string]float64{
		"sandfarm_memory_budget_bytes": 100, "sandfarm_memory_budget_used_bytes": 30,
		"sandfarm_memory_budget_waiting_bytes": 0, "sandfarm_memory_budget_waits_total": 0,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}

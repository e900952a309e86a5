package budget_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

const (
	mib   = 1 << 20
	size  = 16 * mib  // of the budgets of these tests
	large = 14 * mib  // of it, for large requests: seven eighths
	share = large / 2 // of one tenant
	lasts = large / 8 // what one tenant may hold without an end
)

func TestShareIsTheLimitOfATenant(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name        string
		first, more int64
		fits        bool
	}{
		{"Below", share - 2*mib, 2*mib - 1, true},
		{"At", share - 2*mib, 2 * mib, true},
		{"Above", share - 2*mib, 2*mib + 1, false},
		{"AtOnce", share, 0, true},
		{"AboveAtOnce", share + 1, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := budget.New(size)
			hold, ok := b.TryAcquire("a", c.first)
			if ok {
				ok = hold.Grow(c.more)
			}
			if ok != c.fits {
				t.Errorf("%d bytes, then %d more: %v, want %v", c.first, c.more, ok, c.fits)
			}
			other, ok := b.TryAcquire("b", share)
			if !ok {
				t.Error("another tenant did not get its share")
			}
			other.Release()
			hold.Release()
			hold.Release()
			if diff := cmp.Diff(budget.Stats{Size: size}, b.Stats()); diff != "" {
				t.Errorf("after Release (-want +got):\n%s", diff)
			}
		})
	}
}

// Small requests have an eighth of the budget for themselves: large ones do not delay them.
func TestSmallRequestsPassLargeOnes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := budget.New(size)
		one, _ := b.TryAcquire("a", share)
		two, _ := b.TryAcquire("b", share)
		go func() {
			if three, err := b.Acquire(t.Context(), "c", budget.SmallBytes+1); err == nil {
				three.Release()
			}
		}()
		synctest.Wait()
		if got := b.Stats().Waiting; got != budget.SmallBytes+1 {
			t.Errorf("%d bytes wait, want those of the large request", got)
		}
		for range 10 {
			small, ok := b.TryAcquire("c", budget.SmallBytes)
			if !ok {
				t.Fatal("a small request was refused")
			}
			defer small.Release()
		}
		one.Release()
		two.Release()
	})
}

// A request larger than the share is granted as one of the share: its tenant then holds nothing else.
func TestLargeRequestIsGrantedAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := budget.New(size)
		first, _ := b.TryAcquire("a", mib)
		var whole *budget.Hold
		go func() { whole, _ = b.Acquire(t.Context(), "a", 1<<40) }()
		synctest.Wait()
		if whole != nil {
			t.Error("granted while its tenant held something")
		}
		first.Release()
		synctest.Wait()
		if whole.Bytes() != share {
			t.Fatalf("after the release it holds %d bytes, want %d", whole.Bytes(), share)
		}
		if err := whole.Add(t.Context(), 1<<40); err != nil || whole.Bytes() != share {
			t.Errorf("Add beyond the share = %v, %d bytes", err, whole.Bytes())
		}
		whole.Keep(2 * mib)
		if got := b.Stats().Used; got != 2*mib {
			t.Errorf("after Keep %d bytes are used", got)
		}
		whole.Release()
	})
}

// Who holds large bytes does not wait for more: two of them could wait for each other.
func TestSecondLargeRequestOfAHoldDoesNotWait(t *testing.T) {
	t.Parallel()
	b := budget.New(size)
	one, _ := b.TryAcquire("a", 4*mib)
	two, _ := b.TryAcquire("a", 2*mib)
	if err := one.Add(t.Context(), mib); err != nil {
		t.Errorf("Add of what is there = %v", err)
	}
	if err := one.Add(t.Context(), 1); err != nil { // the pool of small ones
		t.Errorf("Add of a byte = %v", err)
	}
	if err := one.Add(t.Context(), mib); farm.CodeOf(err) != farm.CodeExhausted {
		t.Errorf("Add of what is not there = %v", err)
	}
	two.Release()
	if err := one.Add(t.Context(), mib); err != nil {
		t.Errorf("Add after a release = %v", err)
	}
	one.Release()
	if got := b.Stats(); got.Used != 0 || got.Accounts != 0 {
		t.Errorf("at the end %+v", got)
	}
}

// A request that grows in steps may have what it may have at once, while others of its tenant wait for it.
func TestARequestThatGrowsGetsTheShare(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := budget.New(size)
		other, _ := b.TryAcquire("b", share)
		one, _ := b.TryAcquire("a", mib)
		var two *budget.Hold
		go func() { two, _ = b.Acquire(t.Context(), "a", share) }()
		synctest.Wait()
		for range 6 {
			if err := one.Add(t.Context(), mib); err != nil {
				t.Fatalf("with %d bytes of %d: %v", one.Bytes(), share, err)
			}
		}
		if two != nil {
			t.Error("another request was granted beside the share")
		}
		one.Release()
		synctest.Wait()
		two.Release()
		other.Release()
		if got := b.Stats(); got.Used != 0 || got.Accounts != 0 {
			t.Errorf("at the end %+v", got)
		}
	})
}

// What a request may hold for long leaves the bytes for small requests: it becomes lasting up to what the tenant has for that, or large.
func TestParkLeavesRoomForSmallRequests(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lasts int64 // of another Hold
		held  []int64
		want  int64 // bytes of the Hold
	}{
		"BelowLasting":      {lasts - 1000, []int64{999}, 999},
		"AtLasting":         {lasts - 1000, []int64{1000}, 1000},
		"AboveLasting":      {lasts - 1000, []int64{1001}, budget.SmallBytes + 1},
		"SmallAndLargeOnes": {lasts, []int64{budget.SmallBytes, budget.SmallBytes + 1}, 2 * (budget.SmallBytes + 1)},
		"LargeAndSmallOnes": {lasts, []int64{mib, 1000}, mib + budget.SmallBytes + 1},
		"Large":             {lasts, []int64{mib}, mib},
		"TheShare":          {lasts, []int64{share, 1000}, share},
		"Nothing":           {lasts, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := budget.New(size)
			other := b.Lasting("a")
			other.Grow(c.lasts)
			ctx, own := b.With(t.Context(), "a", 0)
			for _, n := range c.held {
				testbed.Must(t, budget.Charge(ctx, n))
			}
			parked, err := own.Park(t.Context())
			testbed.Must(t, err)
			testbed.Diff(t, "bytes", c.want, parked.Bytes())
			testbed.Diff(t, "all bytes", c.lasts+c.want, b.Stats().Used)
			small, ok := b.TryAcquire("a", budget.SmallBytes)
			for n := int64(budget.SmallBytes); n < mib; n += budget.SmallBytes {
				ok = ok && small.Grow(budget.SmallBytes)
			}
			testbed.Check(t, ok, "the share for small requests is not free")
			for _, hold := range []*budget.Hold{small, parked, own, other} {
				hold.Release()
			}
			testbed.Diff(t, "at the end", budget.Stats{Size: size}, b.Stats())
		})
	}
}

// Without room for what lasts, Park waits as Charge does, and meanwhile holds nothing that small requests wait for.
func TestParkWaitsForLargeBytes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := budget.New(size)
		other := b.Lasting("a")
		other.Grow(lasts)
		whole, _ := b.TryAcquire("a", share)
		ctx, own := b.With(t.Context(), "a", 30*time.Second)
		testbed.Must(t, budget.Charge(ctx, 1000))
		began := time.Now()
		hold, err := own.Park(t.Context())
		testbed.Check(t, farm.CodeOf(err) == farm.CodeExhausted && time.Since(began) == 30*time.Second && hold.Bytes() == 0, "Park = %v after %s", err, time.Since(began))
		testbed.Must(t, budget.Charge(ctx, 1000))
		time.AfterFunc(time.Second, whole.Release)
		hold, err = own.Park(t.Context())
		testbed.Check(t, err == nil && hold.Bytes() == budget.SmallBytes+1, "Park with room = %v, %d bytes", err, hold.Bytes())
	})
	if hold, err := (*budget.Hold)(nil).Park(t.Context()); hold != nil || err != nil {
		t.Errorf("Park of no Hold = %v, %v", hold, err)
	}
}

// A request of the API does not wait for ever.
func TestTimeoutOfARequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := budget.New(size)
		hold, _ := b.TryAcquire("a", share)
		ctx, mine := b.With(t.Context(), "a", 30*time.Second)
		began := time.Now()
		if err := budget.Charge(ctx, mib); farm.CodeOf(err) != farm.CodeExhausted {
			t.Errorf("Charge = %v", err)
		}
		if waited := time.Since(began); waited != 30*time.Second { // by the clock of the bubble
			t.Errorf("it waited for %s", waited)
		}
		if got := b.Stats(); got.Waiting != 0 || mine.Bytes() != 0 {
			t.Errorf("afterwards %+v, %d bytes held", got, mine.Bytes())
		}
		hold.Release()
	})
}

// One tenant's requests do not delay another's: tenants take turns.
func TestTenantsTakeTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := budget.New(size)
		one, _ := b.TryAcquire("x", share)
		two, _ := b.TryAcquire("y", share)
		var order []string
		holds := make(chan *budget.Hold, 100)
		ask := func(tenant string, n int) {
			for i := range n {
				go func() {
					hold, err := b.Acquire(t.Context(), tenant, share)
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
		b := budget.New(size)
		one, _ := b.TryAcquire("a", 5*mib)
		two, _ := b.TryAcquire("b", 4*mib)
		ctx, cancel := context.WithCancelCause(t.Context())
		left := errors.New("the caller has left")
		var failed error
		go func() { _, failed = b.Acquire(ctx, "c", share) }()
		synctest.Wait()
		beside, _ := b.TryAcquire("e", 4*mib)
		if _, ok := b.TryAcquire("d", 4*mib); ok {
			t.Error("TryAcquire overtook a request that waits")
		}
		one.Release()
		var next *budget.Hold
		go func() { next, _ = b.Acquire(t.Context(), "d", 4*mib) }()
		synctest.Wait()
		if next != nil {
			t.Error("a request overtook one that came earlier")
		}
		cancel(left)
		synctest.Wait()
		if !errors.Is(failed, left) || next == nil {
			t.Errorf("after the cancel: %v, next %v", failed, next)
		}
		for _, h := range []*budget.Hold{two, beside, next} {
			h.Release()
		}
		if diff := cmp.Diff(budget.Stats{Size: size, Waited: 2}, b.Stats()); diff != "" {
			t.Errorf("at the end (-want +got):\n%s", diff)
		}
	})
}

// Each tenant has at most half of what the others leave beyond its first request, so some that take all they can leave room for the next.
func TestTenantsTogetherLeaveRoom(t *testing.T) {
	t.Parallel()
	b := budget.New(size)
	free := int64(large)
	for i := range 3 {
		tenant := fmt.Sprint("greedy", i)
		first, ok := b.TryAcquire(tenant, mib)
		if !ok {
			t.Fatalf("%s has nothing", tenant)
		}
		defer first.Release()
		if first.Grow(free/2 - mib + 1) {
			t.Errorf("%s has more than half of the %d bytes that the others leave", tenant, free)
		}
		if !first.Grow(free/2 - mib) {
			t.Errorf("%s does not have half of %d bytes", tenant, free)
		}
		if first.Grow(budget.SmallBytes + 1) {
			t.Errorf("%s has another request beyond its half", tenant)
		}
		free -= first.Bytes()
	}
	if last, ok := b.TryAcquire("other", free); !ok {
		t.Error("the first request of another tenant does not get all that is free")
	} else {
		last.Release()
	}
}

// What may be held without an end has a share of its own, in which nobody waits.
func TestHoldsWithoutAnEndBlockNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := budget.New(size)
		var lasting []*budget.Hold
		for i := range 5 {
			h := b.Lasting(fmt.Sprint("tunnels", i))
			lasting = append(lasting, h)
			if got := h.Grow(lasts); got != (i < 4) {
				t.Errorf("tenant %d gets its part: %v", i, got)
			}
			if h.Grow(1) || farm.CodeOf(h.Add(t.Context(), 1)) != farm.CodeExhausted {
				t.Errorf("tenant %d got more", i)
			}
		}
		whole, err := b.Acquire(t.Context(), "tunnels0", share) // it does not wait
		if err != nil || whole.Bytes() != share {
			t.Fatalf("Acquire = %v", err)
		}
		lasting[3].Keep(lasts - 64<<10)
		if !lasting[4].Grow(64 << 10) {
			t.Error("what was given back is not there for another tenant")
		}
		if got := b.Stats().Used; got != large {
			t.Errorf("%d bytes are used", got)
		}
		for _, h := range append(lasting, whole) {
			h.Release()
		}
		if diff := cmp.Diff(budget.Stats{Size: size}, b.Stats()); diff != "" {
			t.Errorf("at the end (-want +got):\n%s", diff)
		}
	})
}

// A request that waits for a hold without an end does not block those that fit beside it, and does not wait for them.
func TestRequestsThatFitBesideABlockedOnePassIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := budget.New(size)
		slow, _ := b.TryAcquire("slow", share)
		earlier, _ := b.TryAcquire("b", mib)
		var blocked, other *budget.Hold
		go func() { blocked, _ = b.Acquire(t.Context(), "c", share) }()
		synctest.Wait()
		go func() { other, _ = b.Acquire(t.Context(), "d", 2*mib) }()
		synctest.Wait()
		terminal := b.Lasting("e")
		fresh, ok := b.TryAcquire("g", 2*mib)
		if blocked != nil || other == nil || !terminal.Grow(mib) || !ok {
			t.Fatalf("blocked %v; beside it got: a waiter %v, a terminal %d bytes, another tenant %v", blocked, other != nil, terminal.Bytes(), ok)
		}
		for range 20 { // what comes back may be used again
			again, ok := b.TryAcquire("f", mib)
			if !ok {
				t.Fatal("what passed and came back counts as passed")
			}
			again.Release()
		}
		last, ok := b.TryAcquire("f", mib)
		if !ok {
			t.Fatal("the last MiB is not there")
		}
		slow.Keep(mib)
		synctest.Wait()
		if _, ok := b.TryAcquire("f", 2*mib); ok || blocked != nil {
			t.Error("what does not fit beside the blocked one passed it")
		}
		slow.Release()
		synctest.Wait()
		if blocked == nil {
			t.Error("what passed it delays it")
		}
		for _, h := range []*budget.Hold{earlier, fresh, other, terminal, last, blocked} {
			h.Release()
		}
		if got := b.Stats(); got.Used != 0 || got.Accounts != 0 {
			t.Errorf("at the end %+v", got)
		}
	})
}

// The Hold of a request is in its context.
func TestHoldOfARequest(t *testing.T) {
	t.Parallel()
	b := budget.New(size)
	ctx, hold := b.With(t.Context(), "a", 0)
	for _, n := range []int64{10, 2 * mib, 30} {
		if err := budget.Charge(ctx, n); err != nil {
			t.Fatal(err)
		}
	}
	if got := b.Stats().Used; got != 2*mib+40 || hold.Bytes() != got {
		t.Errorf("%d bytes are used, %d held", got, hold.Bytes())
	}
	later, second := budget.Renew(ctx)
	if err := budget.Charge(later, mib); err != nil || second.Bytes() != mib {
		t.Errorf("a renewed Hold: %v, %d bytes", err, second.Bytes())
	}
	budget.Keep(ctx, 0)
	if got := b.Stats().Used; got != mib {
		t.Errorf("after Keep %d bytes are used", got)
	}
	second.Release()
	if err := budget.Charge(t.Context(), 1<<50); err != nil {
		t.Errorf("Charge without a Hold = %v", err)
	}
	budget.Keep(t.Context(), 0)
	long := budget.Lasting(ctx)
	if !long.Grow(lasts) || long.Grow(1) || long.Bytes() != lasts {
		t.Errorf("what lasts has %d bytes", long.Bytes())
	}
	long.Release()
	if none := budget.Lasting(t.Context()); !none.Grow(1 << 50) {
		t.Error("Lasting has a limit where there is no Hold")
	}
	if same, none := budget.Renew(t.Context()); same != t.Context() || none != nil {
		t.Error("Renew made a Hold where there was none")
	}
	testbed.Must(t, budget.Charge(ctx, 2*mib))
	testbed.Must(t, budget.Pin(ctx, 10))
	later, second = budget.HandOver(ctx)
	hold.Release() // has nothing any more
	testbed.Check(t, hold.Bytes() == 0 && second.Bytes() == 2*mib && b.Stats().Used == 2*mib, "handed over: %d bytes, %d are used", second.Bytes(), b.Stats().Used)
	budget.Keep(later, 0)
	testbed.Check(t, second.Bytes() == 10, "of what was handed over %d bytes are pinned", second.Bytes())
	second.Release()
	if same, none := budget.HandOver(t.Context()); same != t.Context() || none != nil {
		t.Error("HandOver made a Hold where there was none")
	}
}

// What is pinned stays, all of it together, and is charged where it is not yet. What does not fit is refused.
func TestWhatIsPinnedStays(t *testing.T) {
	t.Parallel()
	b := budget.New(size)
	ctx, hold := b.With(t.Context(), "a", 0)
	defer hold.Release()
	testbed.Must(t, budget.Charge(ctx, mib))
	for _, c := range []struct{ pin, held, kept int64 }{
		{-1, mib, 0}, {0, mib, 0}, {mib - 1, mib, mib - 1}, {1, mib, mib}, {1, mib + 1, mib + 1}, {mib, 2*mib + 1, 2*mib + 1},
	} {
		testbed.Must(t, budget.Charge(ctx, max(0, mib-hold.Bytes())))
		testbed.Must(t, budget.Pin(ctx, c.pin))
		held := hold.Bytes()
		if budget.Keep(ctx, 0); held != c.held || hold.Bytes() != c.kept {
			t.Errorf("%d more are pinned: %d are held, then %d, want %d and %d", c.pin, held, hold.Bytes(), c.held, c.kept)
		}
	}
	for _, more := range []int64{share - 2*mib + 2, 1 << 40} { // two bytes are of the pool of small ones
		if err := budget.Pin(ctx, more); farm.CodeOf(err) != farm.CodeExhausted || hold.Bytes() != 2*mib+1 {
			t.Errorf("%d more: %v, %d held", more, err, hold.Bytes())
		}
	}
	if err := budget.Pin(ctx, share-2*mib+1); err != nil || hold.Bytes() != share+2 {
		t.Errorf("all that is left: %v, %d held", err, hold.Bytes())
	}
	hold.Release()
	testbed.Must(t, budget.Pin(t.Context(), 1<<50))
}

func TestNilBudgetGrantsEverything(t *testing.T) {
	t.Parallel()
	var b *budget.Budget
	hold, err := b.Acquire(t.Context(), "a", 1<<50)
	if err != nil || !hold.Grow(1<<50) || b.Stats() != (budget.Stats{}) || b.Share() < 1<<60 || !b.Lasting("a").Grow(1<<50) {
		t.Errorf("Acquire = %v, %v", hold, err)
	}
	hold.Release()
	(*budget.Hold)(nil).Release()
}

func TestSizeFollowsTheLimits(t *testing.T) {
	t.Parallel()
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
	b := budget.New(size)
	hold, _ := b.TryAcquire("a", 30)
	defer hold.Release()
	r := prometheus.NewRegistry()
	r.MustRegister(budget.Collectors(b, budget.New(size))...)
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
		"sandfarm_memory_budget_bytes": 2 * size, "sandfarm_memory_budget_used_bytes": 30,
		"sandfarm_memory_budget_waiting_bytes": 0, "sandfarm_memory_budget_waits_total": 0,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}

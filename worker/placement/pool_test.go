package placement

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

// An unusable member is removed at the claim, and the sandbox starts cold.
func TestUnfitMemberIsRemovedAtTheClaim(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(b *bundle, p *Placer, m store.Member, s *farm.Sandbox){
		"its container has ended": func(b *bundle, p *Placer, m store.Member, _ *farm.Sandbox) {
			p.node.Disconnect(m.ID)
			b.Fake.Put(m.ID, false)
		},
		"its container is gone": func(b *bundle, p *Placer, m store.Member, _ *farm.Sandbox) {
			p.node.Disconnect(m.ID)
			b.Fake.Forget(m.ID)
		},
		"the agent was replaced": func(_ *bundle, p *Placer, _ store.Member, _ *farm.Sandbox) {
			p.node.UseIdentity(workertest.Node, "agent-2")
		},
		"the record is gone": func(b *bundle, _ *Placer, m store.Member, _ *farm.Sandbox) {
			testbed.Must(b.T, b.Store.DropMember(b.T.Context(), m.ID, store.MemberClaimed))
		},
		"it has variables to hold": func(_ *bundle, _ *Placer, _ store.Member, s *farm.Sandbox) { s.Spec.Env = map[string]string{"A": "b"} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			p := b.pooling(64<<10, "python=1")
			m := b.member(p)
			_, box := b.Claimed(m, nil)
			s := b.Sandbox(box)
			spoil(b, p, m, s)
			_, ok, err := p.AssignMember(t.Context(), s)
			testbed.Check(t, !ok && err == nil, "takeMember = %v, %v", ok, err)
			_, err = b.Store.Member(t.Context(), m.ID)
			testbed.Check(t, err != nil && !b.Fake.Has(m.ID), "the member still exists")
		})
	}
}

// Idle members are evicted for creates.
func TestIdleMembersAreEvictedForCreates(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.pooling(5000+512, "python=2")
	old, young := b.member(p), b.member(p)
	_, err := p.RefreshPool(t.Context())
	testbed.Must(t, err)
	testbed.Must(t, p.RefreshCapacity(t.Context()))
	testbed.Check(t, p.Accepts(farm.QueueCPU), "the gate of creates is closed although idle members can be evicted")
	job, _ := b.Sized(3000, 1)
	claim := b.Claim(job, p.deps.WorkerID)
	ok, err := p.Reserve(t.Context(), claim)
	testbed.Require(t, err == nil && ok, "place = %v, %v", ok, err)
	if b.IdleMembers() != 1 || b.Fake.Has(old.ID) == b.Fake.Has(young.ID) {
		t.Errorf("%d members are left, want 1 and its container", b.IdleMembers())
	}
	b.Reserved(farm.Capacity{MemoryMB: 5048, CPUs: 3})

	job, _ = b.Sized(3000, 1) // which does not fit without members either
	ok, err = p.Reserve(t.Context(), b.Claim(job, p.deps.WorkerID))
	testbed.Check(t, err == nil && !ok && b.IdleMembers() == 1, "a create that cannot fit: %v, %v, and %d members are left", ok, err, b.IdleMembers())
}

func TestUnwantedMembersAreRetired(t *testing.T) {
	t.Parallel()
	for reason, spoil := range map[string]func(b *bundle, p *Placer){
		LeftChanged: func(_ *bundle, p *Placer) { p.cfg.Version = "next" },
		LeftOld:     func(_ *bundle, p *Placer) { p.deps.Now = workertest.In(p.cfg.PoolAge + time.Minute) },
		LeftSurplus: func(_ *bundle, p *Placer) { p.pool.targets[poolKey{image: "python"}] = 1 },
		LeftDied: func(b *bundle, p *Placer) {
			list, err := b.Store.Members(b.T.Context())
			testbed.Must(b.T, err)
			for _, m := range list {
				p.node.Disconnect(m.ID)
				b.Fake.Put(m.ID, false)
			}
		},
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			p := b.pooling(64<<10, "python=2")
			first, second := b.member(p), b.member(p)
			// Missing members are not started now: a waiting create goes first.
			b.Creation(farm.KindCreate)
			testbed.Must(t, p.maintain(t.Context()))
			testbed.Require(t, b.IdleMembers() == 2, "%d of two usable members are left", b.IdleMembers())
			spoil(b, p)
			testbed.Must(t, p.maintain(t.Context()))
			want := 0
			if reason == LeftSurplus {
				want = 1
			}
			left := 0
			for _, m := range []store.Member{first, second} {
				if b.Fake.Has(m.ID) {
					left++
				}
			}
			testbed.Check(t, b.IdleMembers() == want && left == want, "%d members and %d containers are left, want %d", b.IdleMembers(), left, want)
			b.Reserved(farm.Capacity{MemoryMB: 2048 * want, CPUs: float64(2 * want)})
		})
	}
}

// One worker of a node maintains the pool. It leaves members that a living worker starts, and removes those of a dead one.
func TestOneWorkerMaintainsThePool(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p, other := b.pooling(64<<10, "python=1"), b.pooling(64<<10, "python=1")
	starting := store.Member{ID: farm.NewID(farm.SandboxPrefix), Node: "n1", Image: "python", Worker: other.deps.WorkerID}
	testbed.Must(t, b.Store.BeginMember(t.Context(), starting))
	b.Fake.PutMember(starting.ID, true)
	testbed.Must(t, p.maintain(t.Context()))
	locked, err := b.Store.Lock(t.Context(), p.poolLock(), other.deps.WorkerID, time.Second)
	testbed.Check(t, !locked && err == nil, "another worker maintains the pool, too: %v, %v", locked, err)
	testbed.Check(t, b.Fake.Has(starting.ID), "a member that another worker starts was removed")
	testbed.Must(t, b.Store.RemoveWorker(t.Context(), other.deps.WorkerID))
	b.Creation(farm.KindCreate) // so that no member is started in its place
	testbed.Must(t, p.maintain(t.Context()))
	testbed.Check(t, !b.Fake.Has(starting.ID), "a member whose worker died while starting it still exists")
}

// A failed fill leaves nothing behind, and the next one waits.
func TestFailedFillLeavesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t) // its engine cannot create containers
	p := b.pooling(64<<10, "python=3")
	now := time.Now()
	p.deps.Now = func() time.Time { return now } // pauses do not end on their own
	testbed.Must(t, p.maintain(t.Context()))
	testbed.Until(t, "the fills end", func() bool {
		p.pool.mu.Lock()
		defer p.pool.mu.Unlock()
		return len(p.pool.filling) == 0 && !p.pool.until.IsZero()
	})
	list, err := b.Store.Members(t.Context())
	testbed.Check(t, err == nil && len(list) == 0, "left are %+v, %v", list, err)
	b.Reserved(farm.Capacity{})
	got := p.pool.missing(map[poolKey]int{}, p.deps.Now(), false)
	testbed.Check(t, len(got) == 0, "right after a failure %d are to be started", len(got))
	got = p.pool.missing(map[poolKey]int{{image: "python"}: 1}, p.deps.Now().Add(time.Hour), false)
	testbed.Check(t, len(got) == 2, "later %d are to be started, want 2", len(got))
}

// While creates wait for room, one member is started at a time, and only where none is idle.
func TestFillsBesideWaitingCreates(t *testing.T) {
	t.Parallel()
	p := newPool(map[poolKey]int{{image: "python"}: 3})
	later := time.Now().Add(time.Hour)
	missing := func(busy bool) int { return len(p.missing(p.idle, later, busy)) }
	testbed.Diff(t, "started", 1, missing(true))
	p.fillBegins("sbx_1", 2)
	testbed.Diff(t, "started beside one", 0, missing(true))
	p.fillEnded("sbx_1", nil, later)
	p.update([]store.Member{{Image: "python", State: store.MemberIdle, At: later}})
	testbed.Diff(t, "started beside an idle one", 0, missing(true))
	testbed.Diff(t, "started afterwards", 2, missing(false))
}

// Starts have turns, of which a tenant has half, and so has the pool, on an engine that starts all on one machine.
func TestColdStartsTakeTurns(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.placer()
	gone, cancel := context.WithCancel(t.Context())
	cancel() // whoever would wait gets an error
	start := func(ctx context.Context, tenant string) error {
		_, err := p.Turn(ctx, tenant)
		return err
	}
	for range TurnsPerCore * runtime.NumCPU() / 2 {
		testbed.Must(t, start(t.Context(), "acme"))
	}
	if err := start(gone, "acme"); !errors.Is(err, context.Canceled) {
		t.Errorf("a tenant starts more than half of all: %v", err)
	}
	testbed.Must(t, start(t.Context(), poolTenant))
	p.host = nil
	testbed.Must(t, start(t.Context(), "acme"))
}

// A member is recorded while it waits for its turn, so that no second one is started in its place, and its time to start has not begun.
func TestAMemberStartsInItsTurn(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.pooling(64<<10, "python=1")
	p.cfg.CreateTimeout = time.Nanosecond
	var turns []func()
	for range TurnsPerCore * runtime.NumCPU() {
		done, err := p.Turn(t.Context(), farm.NewID(farm.SandboxPrefix)) // of as many tenants
		testbed.Must(t, err)
		turns = append(turns, done)
	}
	testbed.Must(t, p.maintain(t.Context()))
	testbed.Until(t, "the member is recorded", func() bool {
		list, err := b.Store.Members(t.Context())
		return err == nil && len(list) == 1
	})
	testbed.Must(t, p.maintain(t.Context()))
	list, err := b.Store.Members(t.Context())
	testbed.Check(t, err == nil && len(list) == 1 && list[0].State == store.MemberStarting, "recorded are %+v, %v", list, err)
	for _, done := range turns {
		done()
	}
	testbed.Until(t, "the start ends", func() bool {
		p.pool.mu.Lock()
		defer p.pool.mu.Unlock()
		return len(p.pool.filling) == 0 && !p.pool.until.IsZero()
	})
}

func TestMemberWithoutRoomWaits(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.pooling(1000, "python=1")
	err := p.addMember(t.Context(), farm.NewID(farm.SandboxPrefix), poolKey{image: "python"})
	testbed.Check(t, err != nil && strings.Contains(err.Error(), "no room"), "addMember = %v", err)
	b.Reserved(farm.Capacity{})
}

// During a series of creates, members are replaced only when none is left.
func TestFillsWaitForAQuietMoment(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.pooling(64<<10, "python=3")
	now := p.deps.Now()
	claimed := store.Member{Image: "python", State: store.MemberClaimed, At: now}
	idle := store.Member{Image: "python", State: store.MemberIdle, At: now}
	for name, c := range map[string]struct {
		members []store.Member
		after   time.Duration
		want    int
	}{
		"RightAfterAClaim": {[]store.Member{claimed, idle}, fillQuiet - 1, 0},
		"Later":            {[]store.Member{claimed, idle}, fillQuiet, 2},
		"NoneIsLeft":       {[]store.Member{claimed}, 0, 3},
		"ClocksDiffer":     {[]store.Member{claimed, idle}, -time.Second, 2},
	} {
		p.pool.claimed = time.Time{}
		p.pool.update(c.members)
		got := p.pool.missing(p.pool.idle, now.Add(c.after), false)
		testbed.Check(t, len(got) == c.want, "%s: %d are started, want %d", name, len(got), c.want)
	}
}

// The size of an automatic pool, at each of its bounds.
func TestAutomaticPoolFitsTheFreeMemory(t *testing.T) {
	t.Parallel()
	const one = autoShare * memberCost // MiB that must be free for one member
	base := autoNode{memoryMB: 3 * one, cores: 8, capacity: farm.Capacity{MemoryMB: 1 << 20, CPUs: 1 << 10}, member: farm.Capacity{MemoryMB: 2048, CPUs: 2}, available: -1}
	for name, c := range map[string]struct {
		change func(n *autoNode)
		want   int
	}{
		"memory for three":                  {func(*autoNode) {}, 3},
		"1 MiB less":                        {func(n *autoNode) { n.memoryMB-- }, 2},
		"1 MiB less than for one":           {func(n *autoNode) { n.memoryMB = one - 1 }, 0},
		"no memory":                         {func(n *autoNode) { n.memoryMB = 0 }, 0},
		"not measured":                      {func(n *autoNode) { *n = autoNode{} }, 0},
		"as many as cores":                  {func(n *autoNode) { n.cores = 2 }, 2},
		"a large host":                      {func(n *autoNode) { n.memoryMB, n.cores = 256<<10, 64 }, maxAuto},
		"the host has memory for two left":  {func(n *autoNode) { n.available = 2 * one }, 2},
		"the host has 1 MiB less left":      {func(n *autoNode) { n.available = 2*one - 1 }, 1},
		"the host has nothing left":         {func(n *autoNode) { n.available = 0 }, 0},
		"the host has more than sandboxes":  {func(n *autoNode) { n.available = 1 << 20 }, 3},
		"a third is reserved":               {func(n *autoNode) { n.reserved.MemoryMB = 1<<20/3 + 1 }, 1},
		"half the cores are reserved":       {func(n *autoNode) { n.reserved.CPUs = 512 }, 1},
		"everything is reserved":            {func(n *autoNode) { n.reserved = n.capacity }, 0},
		"more is reserved than there is":    {func(n *autoNode) { n.reserved.MemoryMB = 2 << 20 }, 0},
		"two fit into what can be reserved": {func(n *autoNode) { n.capacity.MemoryMB = 2 * autoShare * 2048 }, 2},
		"1 MiB less can be reserved":        {func(n *autoNode) { n.capacity.MemoryMB = 2*autoShare*2048 - 1 }, 1},
		"cores of one can be reserved":      {func(n *autoNode) { n.capacity.CPUs = autoShare * 2 }, 1},
	} {
		n := base
		c.change(&n)
		testbed.Diff(t, fmt.Sprintf("%s: members", name), c.want, autoSize(n))
	}
}

// Members give way to the sandboxes of callers: none is started in the place of one that no longer fits, and those that are far too many
// are retired.
func TestAutomaticPoolGivesWay(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.cfg.MemoryReserveMB = 64
	p := b.pooling(64+3*autoShare*memberCost, poolAuto)
	p.gate.host.CPUs, p.gate.capacity = 400, farm.Capacity{MemoryMB: 100_000, CPUs: 1000}
	refresh := func(want int) {
		t.Helper()
		testbed.Must(t, p.RefreshCapacity(t.Context()))
		_, err := p.RefreshPool(t.Context())
		testbed.Must(t, err)
		stock := p.pool.stock()
		testbed.Require(t, len(stock) == 1 && stock[0].Target == want, "the pool is %+v, want a target of %d", stock, want)
	}
	for range 3 {
		b.member(p)
		refresh(3) // members do not count against themselves
	}
	job, _ := b.Sized(512, 400)
	reserve(t, b, p, job)
	refresh(1)
	b.Creation(farm.KindCreate) // it waits, so that no member is started
	testbed.Must(t, p.maintain(t.Context()))
	testbed.Diff(t, "members are left", 2, b.IdleMembers())
	job, _ = b.Sized(512, 300)
	reserve(t, b, p, job)
	refresh(0)
	testbed.Must(t, p.maintain(t.Context()))
	if n := b.IdleMembers(); n != 0 || !p.WantsPool() {
		t.Errorf("%d members are left where none fits; the pool is wanted: %v", n, p.WantsPool())
	}
}

func reserve(t *testing.T, b *bundle, p *Placer, job farm.Ref) {
	t.Helper()
	claim := b.Claim(job, p.deps.WorkerID)
	ok, err := p.Reserve(t.Context(), claim)
	testbed.Require(t, err == nil && ok, "Reserve = %v, %v", ok, err)
}

// The pool of a worker follows the images that the engine has, whoever has built them: in docker compose that is another service.
func TestAutomaticPoolOfAnImageThatOthersBuild(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.pooling(64<<10, poolAuto) // 4 cores
	_, err := p.node.Images(t.Context())
	testbed.Must(t, err)
	_, err = p.RefreshPool(t.Context())
	testbed.Must(t, err)
	if stock := p.pool.stock(); !p.WantsPool() || len(stock) != 1 || stock[0].Target != 4 {
		t.Errorf("the pool is wanted: %v, %+v; want a target of 4", p.WantsPool(), stock)
	}
}

// A node that is too small, or lacks the image, has no automatic pool, and the reconciler may remove what an earlier one left.
func TestNoAutomaticPool(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		memoryMB int
		image    string
	}{
		"too small":     {autoShare*memberCost - 1, autoImage},
		"another image": {64 << 10, "node"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.Fake.SetImage(c.image)
			p := b.pooling(c.memoryMB, poolAuto)
			_, err := p.node.Images(t.Context())
			testbed.Must(t, err)
			_, err = p.RefreshPool(t.Context())
			testbed.Must(t, err)
			if p.WantsPool() || len(p.pool.stock()) != 0 {
				t.Errorf("the pool is wanted: %v, %+v", p.WantsPool(), p.pool.stock())
			}
		})
	}
}

func TestPoolTargets(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]map[poolKey]int{
		"": {}, "none": {}, "auto": {}, "python=0": {{image: "python"}: 0}, "python=2,node=1": {{image: "python"}: 2, {image: "node"}: 1}, "python=1000": {{image: "python"}: 1000},
		"python=2,python@runsc=1": {{image: "python"}: 2, {"python", "runsc"}: 1},
	} {
		got, err := Config{Pool: split(text)}.poolTargets()
		testbed.Check(t, err == nil && maps.Equal(got, want), "%q gives %v, %v", text, got, err)
	}
	for _, text := range []string{"python", "python=", "python=-1", "python=1001", "=2", "Python=1", "python=1,python=2", "auto,python=1", "none,auto", "python=two", "python@=1", "@runsc=1", "python@runsc=1,python@runsc=2", "python@run sc=1"} {
		err := (Config{Pool: split(text), PoolFill: 2, MemoryOvercommit: 1, CPUOvercommit: 1}).Validate()
		testbed.Check(t, err != nil, "%q is allowed", text)
	}
}

func split(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
}

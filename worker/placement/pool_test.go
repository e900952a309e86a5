package placement

import (
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
			workertest.Must(b.T, b.Store.DropMember(b.T.Context(), m.ID, store.MemberClaimed))
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
			if _, ok, err := p.AssignMember(t.Context(), s); ok || err != nil {
				t.Errorf("takeMember = %v, %v", ok, err)
			}
			if _, err := b.Store.Member(t.Context(), m.ID); err == nil || b.Fake.Has(m.ID) {
				t.Error("the member still exists")
			}
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
	workertest.Must(t, err)
	workertest.Must(t, p.RefreshCapacity(t.Context()))
	if !p.Accepts(farm.QueueCPU) {
		t.Error("the gate of creates is closed although idle members can be evicted")
	}
	job, _ := b.Sized(3000, 1)
	claim, err := b.Store.Claim(t.Context(), job, p.deps.WorkerID)
	workertest.Must(t, err)
	if ok, err := p.Reserve(t.Context(), claim); err != nil || !ok {
		t.Fatalf("place = %v, %v", ok, err)
	}
	if b.IdleMembers() != 1 || b.Fake.Has(old.ID) == b.Fake.Has(young.ID) {
		t.Errorf("%d members are left, want 1 and its container", b.IdleMembers())
	}
	b.Reserved(farm.Capacity{MemoryMB: 5048, CPUs: 3})
}

func TestUnwantedMembersAreRetired(t *testing.T) {
	t.Parallel()
	for reason, spoil := range map[string]func(b *bundle, p *Placer){
		LeftChanged: func(_ *bundle, p *Placer) { p.cfg.Version = "next" },
		LeftOld:     func(_ *bundle, p *Placer) { p.deps.Now = workertest.In(p.cfg.PoolAge + time.Minute) },
		LeftSurplus: func(_ *bundle, p *Placer) { p.pool.targets[poolKey{image: "python"}] = 1 },
		LeftDied: func(b *bundle, p *Placer) {
			list, err := b.Store.Members(b.T.Context())
			workertest.Must(b.T, err)
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
			workertest.Must(t, p.maintain(t.Context()))
			if b.IdleMembers() != 2 {
				t.Fatalf("%d of two usable members are left", b.IdleMembers())
			}
			spoil(b, p)
			workertest.Must(t, p.maintain(t.Context()))
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
			if b.IdleMembers() != want || left != want {
				t.Errorf("%d members and %d containers are left, want %d", b.IdleMembers(), left, want)
			}
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
	workertest.Must(t, b.Store.BeginMember(t.Context(), starting))
	b.Fake.PutMember(starting.ID, true)
	workertest.Must(t, p.maintain(t.Context()))
	if locked, err := b.Store.Lock(t.Context(), p.poolLock(), other.deps.WorkerID, time.Second); locked || err != nil {
		t.Errorf("another worker maintains the pool, too: %v, %v", locked, err)
	}
	if !b.Fake.Has(starting.ID) {
		t.Error("a member that another worker starts was removed")
	}
	workertest.Must(t, b.Store.RemoveWorker(t.Context(), other.deps.WorkerID))
	b.Creation(farm.KindCreate) // so that no member is started in its place
	workertest.Must(t, p.maintain(t.Context()))
	if b.Fake.Has(starting.ID) {
		t.Error("a member whose worker died while starting it still exists")
	}
}

// A failed fill leaves nothing behind, and the next one waits.
func TestFailedFillLeavesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t) // its engine cannot create containers
	p := b.pooling(64<<10, "python=3")
	now := time.Now()
	p.deps.Now = func() time.Time { return now } // pauses do not end on their own
	workertest.Must(t, p.maintain(t.Context()))
	testbed.Until(t, "the fills end", func() bool {
		p.pool.mu.Lock()
		defer p.pool.mu.Unlock()
		return len(p.pool.filling) == 0 && !p.pool.until.IsZero()
	})
	if list, err := b.Store.Members(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("left are %+v, %v", list, err)
	}
	b.Reserved(farm.Capacity{})
	if got := p.pool.missing(map[poolKey]int{}, p.deps.Now()); len(got) != 0 {
		t.Errorf("right after a failure %d are to be started", len(got))
	}
	if got := p.pool.missing(map[poolKey]int{{image: "python"}: 1}, p.deps.Now().Add(time.Hour)); len(got) != 2 {
		t.Errorf("later %d are to be started, want 2", len(got))
	}
	done := p.pool.coldStart()
	if got := p.pool.missing(map[poolKey]int{}, p.deps.Now().Add(time.Hour)); len(got) != 0 {
		t.Errorf("while a create starts %d are to be started", len(got))
	}
	done()
}

func TestMemberWithoutRoomWaits(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.pooling(1000, "python=1")
	if err := p.addMember(t.Context(), farm.NewID(farm.SandboxPrefix), poolKey{image: "python"}); err == nil || !strings.Contains(err.Error(), "no room") {
		t.Errorf("addMember = %v", err)
	}
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
		if got := p.pool.missing(p.pool.idle, now.Add(c.after)); len(got) != c.want {
			t.Errorf("%s: %d are started, want %d", name, len(got), c.want)
		}
	}
}

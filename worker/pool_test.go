package worker

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// A create that claimed a member is done as soon as the member has its limits and the engine knows whose it is.
func TestClaimedMemberBecomesTheSandbox(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.pooling(64<<10, "python=1")
	m := b.member(w, nil)
	job, box := b.claimed(m, nil)
	must(t, w.handle(t.Context(), task(job)))
	if s, j := b.sandbox(box), b.job(job); s.State != farm.SandboxReady || s.ID != m.ID || s.Container != m.Container || j.State != farm.JobCompleted {
		t.Fatalf("sandbox %+v, job %+v", s, j)
	}
	var kept farm.Sandbox
	note := b.eng.note(box.ID)
	if err := json.Unmarshal([]byte(note[labelRecord]), &kept); err != nil || kept.ID != box.ID || note[engine.LabelTenant] != tenant || note[labelEpoch] == "" {
		t.Errorf("note %v", note)
	}
	if len(b.eng.updates) != 0 {
		t.Errorf("the limits are the usual ones, and were set: %v", b.eng.updates)
	}
	b.promised(farm.Capacity{MemoryMB: 2048, CPUs: 2})
	must(t, w.handle(t.Context(), task(b.closeJob(box))))
	if _, err := b.store.Member(t.Context(), m.ID); err == nil || b.eng.note(box.ID) != nil || b.eng.has(m.ID) {
		t.Errorf("left of it: member %v, note %v", err, b.eng.note(box.ID))
	}
	b.promised(farm.Capacity{})
}

func TestClaimSetsTheLimits(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.pooling(64<<10, "python=1")
	job, box := b.claimed(b.member(w, nil), func(s *farm.Sandbox) {
		s.Spec.Resources = farm.Resources{MemoryMB: 4096, CPUs: 0.5, PIDs: 99, DiskMB: 1024}
	})
	must(t, w.handle(t.Context(), task(job)))
	if s := b.sandbox(box); s.State != farm.SandboxReady {
		t.Fatalf("sandbox %+v", s)
	}
	for _, part := range []string{`"Memory":4294967296`, `"MemorySwap":4294967296`, `"NanoCpus":500000000`, `"PidsLimit":99`} {
		if len(b.eng.updates) != 1 || !strings.Contains(b.eng.updates[0], part) {
			t.Errorf("changes of limits: %v; want %s", b.eng.updates, part)
		}
	}
	b.promised(farm.Capacity{MemoryMB: 4096, CPUs: 0.5})
}

// What a claim finds may be another than what was claimed. Then nothing of it is taken for the sandbox.
func TestUnfitMemberIsRemovedAtTheClaim(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(b *bundle, w *Worker, m store.Member, s *farm.Sandbox){
		"its container has ended": func(b *bundle, w *Worker, m store.Member, _ *farm.Sandbox) {
			w.links.drop(m.ID)
			b.eng.put(m.ID, false)
		},
		"its container is gone": func(b *bundle, w *Worker, m store.Member, _ *farm.Sandbox) {
			w.links.drop(m.ID)
			delete(b.eng.containers, "test-"+m.ID)
		},
		"the agent was replaced": func(_ *bundle, w *Worker, _ store.Member, _ *farm.Sandbox) { w.volume = "agent-2" },
		"the record is gone": func(b *bundle, _ *Worker, m store.Member, _ *farm.Sandbox) {
			must(b.t, b.store.DropMember(b.t.Context(), m.ID, store.MemberClaimed))
		},
		"it has variables to hold": func(_ *bundle, _ *Worker, _ store.Member, s *farm.Sandbox) { s.Spec.Env = map[string]string{"A": "b"} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			w := b.pooling(64<<10, "python=1")
			m := b.member(w, nil)
			_, box := b.claimed(m, nil)
			s := b.sandbox(box)
			spoil(b, w, m, s)
			if _, ok, err := w.takeMember(t.Context(), s); ok || err != nil {
				t.Errorf("takeMember = %v, %v", ok, err)
			}
			if _, err := b.store.Member(t.Context(), m.ID); err == nil || b.eng.has(m.ID) {
				t.Error("the member is still there")
			}
		})
	}
}

// A member that cannot grow on its node goes, and the create waits for room wherever there is some.
func TestMemberWithoutRoomToGrowSendsItsCreateElsewhere(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.pooling(3000+512, "python=1")
	m := b.member(w, nil)
	job, box := b.claimed(m, func(s *farm.Sandbox) { s.Spec.Resources.MemoryMB = 8000 })
	must(t, w.handle(t.Context(), task(job)))
	if j, s := b.job(job), b.sandbox(box); j.State != farm.JobQueued || j.Queue != farm.QueueCPU || s.State != farm.SandboxQueued || s.Node != "" || j.Attempt != j.Uncounted {
		t.Errorf("job %+v, sandbox %+v", j, s)
	}
	if b.eng.has(m.ID) {
		t.Error("the member's container is still there")
	}
	b.promised(farm.Capacity{})
}

// Idle members hold room that nobody else needs: a create gets it.
func TestIdleMembersGiveWay(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.pooling(5000+512, "python=2")
	old, young := b.member(w, nil), b.member(w, nil)
	_, err := w.lookAtPool(t.Context())
	must(t, err)
	must(t, w.lookAtRooms(t.Context()))
	if !w.gate(farm.QueueCPU) {
		t.Error("the gate of creates is closed for want of room that idle members hold")
	}
	job, _ := b.sized(3000, 1)
	claim, err := b.store.Claim(t.Context(), job, w.id)
	must(t, err)
	if ok, err := w.place(t.Context(), w.runs.add(claim)); err != nil || !ok {
		t.Fatalf("place = %v, %v", ok, err)
	}
	if b.idle() != 1 || b.eng.has(old.ID) == b.eng.has(young.ID) {
		t.Errorf("%d members are left, want 1 and its container", b.idle())
	}
	b.promised(farm.Capacity{MemoryMB: 5048, CPUs: 3})
}

func TestMembersThatShouldNotBeThereLeave(t *testing.T) {
	t.Parallel()
	for reason, spoil := range map[string]func(b *bundle, w *Worker){
		leftChanged: func(_ *bundle, w *Worker) { w.cfg.Version = "next" },
		leftOld:     func(_ *bundle, w *Worker) { w.now = in(w.cfg.PoolAge + time.Minute) },
		leftSurplus: func(_ *bundle, w *Worker) { w.pool.targets["python"] = 1 },
		leftDied: func(b *bundle, w *Worker) {
			list, err := b.store.Members(b.t.Context())
			must(b.t, err)
			for _, m := range list {
				w.links.drop(m.ID)
				b.eng.put(m.ID, false)
			}
		},
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			w := b.pooling(64<<10, "python=2")
			first, second := b.member(w, nil), b.member(w, nil)
			// What is missing afterwards is not started: a create waits, and goes first.
			b.creation(farm.KindCreate)
			must(t, w.tend(t.Context()))
			if b.idle() != 2 {
				t.Fatalf("%d members are left of two good ones", b.idle())
			}
			spoil(b, w)
			must(t, w.tend(t.Context()))
			want := 0
			if reason == leftSurplus {
				want = 1
			}
			left := 0
			for _, m := range []store.Member{first, second} {
				if b.eng.has(m.ID) {
					left++
				}
			}
			if b.idle() != want || left != want {
				t.Errorf("%d members and %d containers are left, want %d", b.idle(), left, want)
			}
			b.promised(farm.Capacity{MemoryMB: 2048 * want, CPUs: float64(2 * want)})
		})
	}
}

// One worker of a node tends the pool; what another one that is alive starts is left to it, and what a dead one left is removed.
func TestOneWorkerTendsThePool(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w, other := b.pooling(64<<10, "python=1"), b.pooling(64<<10, "python=1")
	starting := store.Member{ID: farm.NewID(farm.SandboxPrefix), Node: "n1", Image: "python", Worker: other.id}
	must(t, b.store.BeginMember(t.Context(), starting))
	b.eng.contain(starting.ID, "", true)
	must(t, w.tend(t.Context()))
	if held, err := b.store.Lock(t.Context(), w.poolLock(), other.id, time.Second); held || err != nil {
		t.Errorf("another worker has the pool as well: %v, %v", held, err)
	}
	if !b.eng.has(starting.ID) {
		t.Error("what another worker starts was removed")
	}
	must(t, b.store.RemoveWorker(t.Context(), other.id))
	b.creation(farm.KindCreate) // so that nothing is started in its place
	must(t, w.tend(t.Context()))
	if b.eng.has(starting.ID) {
		t.Error("what a dead worker began is still there")
	}
}

// A fill that fails leaves nothing, and the next one waits.
func TestFillThatFailsLeavesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t) // its engine makes no containers
	w := b.pooling(64<<10, "python=3")
	must(t, w.tend(t.Context()))
	until(t, "the fills end", func() bool {
		w.pool.mu.Lock()
		defer w.pool.mu.Unlock()
		return len(w.pool.filling) == 0 && !w.pool.until.IsZero()
	})
	if list, err := b.store.Members(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("left are %+v, %v", list, err)
	}
	b.promised(farm.Capacity{})
	if got := w.pool.missing(map[string]int{}, w.now()); len(got) != 0 {
		t.Errorf("right after a failure %d are to be started", len(got))
	}
	if got := w.pool.missing(map[string]int{"python": 1}, w.now().Add(time.Hour)); len(got) != 2 {
		t.Errorf("later %d are to be started, want 2", len(got))
	}
	done := w.pool.begun()
	if got := w.pool.missing(map[string]int{}, w.now().Add(time.Hour)); len(got) != 0 {
		t.Errorf("while a create starts %d are to be started", len(got))
	}
	done()
}

func TestMemberThatFindsNoRoomWaits(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.pooling(1000, "python=1")
	if err := w.addMember(t.Context(), farm.NewID(farm.SandboxPrefix), "python"); err == nil || !strings.Contains(err.Error(), "no room") {
		t.Errorf("addMember = %v", err)
	}
	b.promised(farm.Capacity{})
}

// While creates come one after the other, members are not replaced before there is none left.
func TestFillsWaitForAQuietMoment(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.pooling(64<<10, "python=3")
	now := w.now()
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
		w.pool.claimed = time.Time{}
		w.pool.note(c.members)
		if got := w.pool.missing(w.pool.idle, now.Add(c.after)); len(got) != c.want {
			t.Errorf("%s: %d are started, want %d", name, len(got), c.want)
		}
	}
}

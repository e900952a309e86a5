package worker

import (
	"testing"

	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// The reconciler takes members for what they are: nobody's yet, somebody's, or left over.
func TestReconcileKnowsMembers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.pooling(64<<10, "python=9")
	open := b.member(w, nil)
	openJob, openBox := b.claimed(open, nil)
	must(t, w.handle(t.Context(), task(openJob)))
	refused := b.member(w, nil) // claimed, and no sandbox came of it
	_, err := b.store.ClaimMember(t.Context(), store.MemberClaim{Tenant: tenant, Image: "python", Network: farm.NetworkNone, DiskMB: 1024, Nodes: []string{"n1"}})
	must(t, err)
	idle := b.member(w, nil)
	stranger := farm.NewID(farm.SandboxPrefix) // its record is gone, and nobody had it
	b.eng.contain(stranger, w.epoch.get(), true)
	elsewhere := b.member(w, nil)
	elsewhereJob, elsewhereBox := b.claimed(idle, nil) // the oldest one goes first
	must(t, b.store.UnassignNode(t.Context(), elsewhereJob, 0, farm.QueueCPU))
	idle, elsewhere = elsewhere, idle
	_, err = b.store.MoveSandbox(t.Context(), store.Move{Ref: elsewhereBox, To: farm.SandboxStarting, Node: "n2"})
	must(t, err)
	b.eng.notes["sbx_gone"] = map[string]string{engine.LabelRole: engine.RoleNote, engine.LabelSandbox: "sbx_gone"}

	must(t, w.reconcile(t.Context()))
	for _, c := range []struct {
		what string
		id   string
		want bool
	}{{"an open sandbox", open.ID, true}, {"a claim of just now", refused.ID, true}, {"an idle one", idle.ID, true}, {"a stranger", stranger, false}, {"one whose sandbox is elsewhere", elsewhere.ID, false}} {
		if got := b.eng.has(c.id); got != c.want {
			t.Errorf("%s: its container is there: %v, want %v", c.what, got, c.want)
		}
	}
	if b.eng.note("sbx_gone") != nil || b.eng.note(openBox.ID) == nil {
		t.Error("notes do not fit the containers")
	}
	if s := b.sandbox(openBox); s.State != farm.SandboxReady {
		t.Errorf("the open sandbox is %s", s.State)
	}
	w.now = in(2 * claimPatience)
	must(t, w.reconcile(t.Context()))
	if b.eng.has(refused.ID) || !b.eng.has(idle.ID) || !b.eng.has(open.ID) {
		t.Error("later: the claim that came to nothing stays, or another one went")
	}
	must(t, w.reconcile(t.Context())) // and its record with the container
	if _, err := b.store.Member(t.Context(), refused.ID); err == nil {
		t.Error("the claim that came to nothing is still recorded")
	}
	if _, err := b.store.Member(t.Context(), elsewhere.ID); err == nil {
		t.Error("the claim of a sandbox that is elsewhere is still recorded")
	}
}

// A Redis that forgets: the sandbox that a member became is taken back from the engine's note, for its tenant, and members that
// nobody had go.
func TestLostRecordsOfMembers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.pooling(64<<10, "python=2")
	used := b.member(w, nil)
	job, box := b.claimed(used, func(s *farm.Sandbox) { s.Spec.Name = "kept" })
	must(t, w.handle(t.Context(), task(job)))
	idle := b.member(w, nil)
	b.redis.FlushAll()
	must(t, w.reconcile(t.Context()))
	if s := b.sandbox(box); s.State != farm.SandboxReady || s.Spec.Name != "kept" || s.Node != "n1" || s.Container != used.Container || !s.Pooled {
		t.Errorf("taken back: %+v", s)
	}
	if b.eng.has(idle.ID) || !b.eng.has(used.ID) {
		t.Error("the wrong container was removed")
	}
	for range 2 { // its note says whose it is from now on
		must(t, w.reconcile(t.Context()))
	}
	if s := b.sandbox(box); s.State != farm.SandboxReady || !b.eng.has(used.ID) || b.eng.note(box.ID) == nil {
		t.Errorf("later: %+v", s)
	}
	must(t, w.handle(t.Context(), task(b.closeJob(box))))
	if b.eng.has(used.ID) || b.eng.note(box.ID) != nil {
		t.Error("the close left something")
	}
}

// Where Redis keeps nothing at all, a start takes back what members became.
func TestStartAdoptsWhatMembersBecame(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.pooling(64<<10, "python=1")
	used := b.member(w, nil)
	job, box := b.claimed(used, nil)
	must(t, w.handle(t.Context(), task(job)))
	idle := b.member(w, nil)
	b.redis.FlushAll()
	b.cfg.Adopt = true
	next := b.worker()
	must(t, next.adopt(t.Context()))
	if s := b.sandbox(box); s.State != farm.SandboxReady || s.Tenant != tenant {
		t.Errorf("adopted: %+v", s)
	}
	if _, err := b.store.Sandbox(t.Context(), farm.Ref{Tenant: "", ID: idle.ID}); farm.CodeOf(err) != farm.CodeNotFound {
		t.Errorf("one that nobody had: %v", err)
	}
}

// Members whose container ended while no worker looked leave the pool before anybody claims them, and so do all members of a
// node on which no worker wants them any more.
func TestReconcileTakesMembersOut(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.pooling(64<<10, "python=2")
	gone, left := b.member(w, nil), b.member(w, nil)
	b.eng.mu.Lock()
	delete(b.eng.containers, "test-"+gone.ID)
	b.eng.mu.Unlock()
	must(t, w.reconcile(t.Context()))
	if _, err := b.store.Member(t.Context(), gone.ID); err == nil || b.idle() != 1 {
		t.Errorf("a member without a container is offered (%d)", b.idle())
	}
	b.cfg.Pool = nil
	none := b.measured(64<<10, 4)
	must(t, b.store.Heartbeat(t.Context(), farm.Worker{ID: w.id, Node: "n1", Pool: []farm.PoolStock{{Image: "python", Target: 2}}}))
	must(t, none.reconcile(t.Context()))
	if b.idle() != 1 {
		t.Error("a worker without a pool removed what another one wants")
	}
	must(t, b.store.RemoveWorker(t.Context(), w.id))
	must(t, none.reconcile(t.Context()))
	if b.idle() != 0 || b.eng.has(left.ID) {
		t.Error("members that no worker wants are still there")
	}
}

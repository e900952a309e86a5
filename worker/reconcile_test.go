package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/dispatch"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/queue"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/worker/placement"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

func TestReconcile(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker()
	kept, gone, ended := b.Ready(), b.Ready(), b.Ready()
	b.Fake.Put(kept.ID, true)
	b.Fake.Put(ended.ID, false)
	b.Fake.Put("sbx_nobody", true)

	failed, held := b.Ready(), b.Ready() // both are closing; one has no close job left
	for _, box := range []farm.Ref{failed, held} {
		b.Fake.Put(box.ID, true)
	}
	closed := b.CloseJob(failed)
	b.CloseJob(held)
	testbed.Must(t, w.dispatch.Force(t.Context(), closed, farm.JobFailed, &farm.JobError{Code: farm.CodeInternal, Message: "the engine was busy"}))

	testbed.Must(t, w.reconciler.Run(t.Context()))
	for box, want := range map[farm.Ref]farm.SandboxState{
		kept: farm.SandboxReady, gone: farm.SandboxLost, ended: farm.SandboxLost, failed: farm.SandboxClosed, held: farm.SandboxClosing,
	} {
		testbed.Diff(t, "a sandbox", want, b.Sandbox(box).State)
	}
	for id, want := range map[string]bool{kept.ID: true, ended.ID: false, failed.ID: false, held.ID: true, "sbx_nobody": false} {
		testbed.Check(t, b.Fake.Has(id) == want, "container of %s exists: %v", id, !want)
	}
}

// A container that cannot be removed does not stop the reconciler.
func TestReconcileContinuesAfterAnError(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker()
	gone := b.Ready()
	b.Fake.Put("sbx_nobody", true)
	b.Fake.BreakRemovals(true)
	err := w.reconciler.Run(t.Context())
	testbed.Check(t, err != nil, "the error is not returned")
	testbed.Diff(t, "a sandbox without a container", farm.SandboxLost, b.Sandbox(gone).State)
	b.Fake.BreakRemovals(false)
	testbed.Must(t, w.reconciler.Run(t.Context()))
	testbed.Check(t, !b.Fake.Has("sbx_nobody"), "the container still exists")
}

// slowDocuments are documents that a test can make fail, each time after some time by its clock.
type slowDocuments struct {
	*storetest.Documents
	clock *handClock
	delay atomic.Int64
}

func (d *slowDocuments) GetDocument(ctx context.Context, key string) ([]byte, error) {
	d.clock.pass(time.Duration(d.delay.Load()))
	return d.Documents.GetDocument(ctx, key)
}

// Records that cannot be read stop the reconciler for no other sandbox: their containers stay, and so do those that a run does not come to within
// unreadFor. It used to end at the first one.
func TestReconcileContinuesWithoutAnUnreadableRecord(t *testing.T) {
	t.Parallel()
	b := setup(t)
	documents := &slowDocuments{Documents: storetest.NewDocuments(), clock: &handClock{now: time.Now()}}
	rdb := redis.NewClient(&redis.Options{Addr: b.Redis.Addr(), MaxRetries: -1})
	t.Cleanup(func() { _ = rdb.Close() })
	b.Store = store.New(rdb, queue.EnqueueLua(), store.Options{Logger: b.Log, Documents: documents})
	t.Cleanup(func() { _ = b.Store.Close() })
	b.deps.Store = b.Store
	w := b.worker()
	w.now = documents.clock.read
	wide := map[string]string{}
	for i := range 40 {
		wide[fmt.Sprintf("label-%02d", i)] = strings.Repeat("x", 500)
	}
	const large = 3
	for range large {
		box := &farm.Sandbox{ID: farm.NewID(farm.SandboxPrefix), Tenant: workertest.Tenant, Spec: farm.SandboxSpec{Image: "python", Network: farm.NetworkNone, TTLSeconds: 3600, Labels: wide}}
		b.Accept(farm.KindCreate, box.ID, &farm.Request{Sandbox: &box.Spec}, func(a *store.Accept) { a.Sandbox = box })
		b.Move(box.Ref(), farm.SandboxStarting, farm.SandboxReady)
		b.Fake.Put(box.ID, true)
	}
	for _, c := range []struct {
		delay time.Duration // of a record that cannot be read
		tries int           // at records of containers; one more is that of the node's sandboxes
	}{{unreadFor / large, large}, {unreadFor/2 - 1, large}, {unreadFor / 2, 2}, {unreadFor/2 + 1, 2}, {unreadFor, 1}} {
		gone := b.Ready()
		documents.delay.Store(int64(c.delay))
		documents.Fail(farm.Errorf(farm.CodeUnavailable, "the object store does not answer"))
		_, before := documents.Calls()
		err := w.reconciler.Run(t.Context())
		_, after := documents.Calls()
		testbed.Check(t, farm.CodeOf(err) == farm.CodeUnavailable, "%v: Run = %v", c.delay, err)
		testbed.Check(t, after-before == c.tries+1, "%v: %d tries at records, want %d", c.delay, after-before, c.tries+1)
		testbed.Diff(t, "a sandbox without a container", farm.SandboxLost, b.Sandbox(gone).State)
		documents.Fail(nil)
	}
	b.Fake.Put("sbx_nobody", true)
	testbed.Must(t, w.reconciler.Run(t.Context()))
	open, err := b.Store.OpenOnNode(t.Context(), w.node.ID())
	testbed.Require(t, err == nil && len(open) == large, "OpenOnNode = %d, %v", len(open), err)
	for _, s := range open {
		testbed.Check(t, s.State == farm.SandboxReady && b.Fake.Has(s.ID), "sandbox %s, container exists: %v", s.State, b.Fake.Has(s.ID))
	}
	testbed.Check(t, !b.Fake.Has("sbx_nobody"), "the container of no sandbox still exists")
}

// A close job that the engine refuses leaves its sandbox to the reconciler.
func TestCloseThatFailsIsFinishedLater(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w, box := b.worker(), b.Ready()
	b.Fake.Put(box.ID, true)
	b.Fake.BreakRemovals(true)
	closing := b.CloseJob(box)
	b.done(w, closing, farm.JobFailed)
	b.Fake.BreakRemovals(false)
	testbed.Must(t, w.reconciler.Run(t.Context()))
	s := b.Sandbox(box)
	testbed.Require(t, s.State == farm.SandboxClosed && !b.Fake.Has(box.ID), "sandbox %s, container exists: %v", s.State, b.Fake.Has(box.ID))
}

// The reconciler keeps members of the pool that are idle or have an open sandbox, and removes the others.
func TestReconcileKeepsUsedMembers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.pooling(64<<10, "python=9")
	open := b.member(w)
	openJob, openBox := b.Claimed(open, nil)
	testbed.Must(t, w.handle(t.Context(), workertest.Task(openJob)))
	refused := b.member(w) // claimed, but its create was refused
	_, err := b.Store.ClaimMember(t.Context(), store.MemberClaim{Tenant: workertest.Tenant, Image: "python", Network: farm.NetworkNone, DiskMB: 1024, Nodes: []string{"n1"}})
	testbed.Must(t, err)
	idle := b.member(w)
	stranger := farm.NewID(farm.SandboxPrefix) // its record is gone, and it had no owner
	b.Fake.PutMember(stranger, true)
	elsewhere := b.member(w)
	otherJob, otherBox := b.Claimed(idle, nil) // the oldest is claimed first
	b.Requeue(otherJob, store.Requeue{Elsewhere: true})
	idle, elsewhere = elsewhere, idle
	_, err = b.Store.MoveSandbox(t.Context(), store.Move{Ref: otherBox, To: farm.SandboxStarting, Node: "n2"})
	testbed.Must(t, err)
	b.Fake.PutNote("sbx_gone")

	testbed.Must(t, w.reconciler.Run(t.Context()))
	for _, c := range []struct {
		what string
		id   string
		want bool
	}{{"an open sandbox", open.ID, true}, {"a claim of just now", refused.ID, true}, {"an idle one", idle.ID, true}, {"a stranger", stranger, false}, {"one whose sandbox is elsewhere", elsewhere.ID, false}} {
		testbed.Diff(t, fmt.Sprintf("%s: its container exists", c.what), c.want, b.Fake.Has(c.id))
	}
	testbed.Check(t, b.Fake.Note("sbx_gone") == nil && b.Fake.Note(openBox.ID) != nil, "notes and containers do not match")
	b.SandboxIs(openBox, farm.SandboxReady)
	w.now = workertest.In(2 * placement.ClaimGrace)
	testbed.Must(t, w.reconciler.Run(t.Context()))
	if b.Fake.Has(refused.ID) || !b.Fake.Has(idle.ID) || !b.Fake.Has(open.ID) {
		t.Error("after the grace: the claim of a refused create stays, or another member was removed")
	}
	testbed.Must(t, w.reconciler.Run(t.Context())) // removes its record with the container
	_, err = b.Store.Member(t.Context(), refused.ID)
	testbed.Check(t, err != nil, "the claim of a refused create is still recorded")
	_, err = b.Store.Member(t.Context(), elsewhere.ID)
	testbed.Check(t, err != nil, "the claim of a sandbox on another node is still recorded")
}

// When Redis lost its data, the sandbox of a claimed member is restored from the engine's note, and members without an owner are removed.
func TestLostRecordsOfMembers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.pooling(64<<10, "python=2")
	used := b.member(w)
	job, box := b.Claimed(used, func(s *farm.Sandbox) { s.Spec.Name = "kept" })
	testbed.Must(t, w.handle(t.Context(), workertest.Task(job)))
	idle := b.member(w)
	b.Redis.FlushAll()
	testbed.Must(t, w.reconciler.Run(t.Context()))
	if s := b.Sandbox(box); s.State != farm.SandboxReady || s.Spec.Name != "kept" || s.Node != "n1" || s.Container != used.Container || !s.Pooled {
		t.Errorf("restored: %+v", s)
	}
	testbed.Check(t, !b.Fake.Has(idle.ID) && b.Fake.Has(used.ID), "the wrong container was removed")
	_, err := b.Store.Sandbox(t.Context(), farm.Ref{Tenant: "", ID: idle.ID})
	testbed.Check(t, farm.CodeOf(err) == farm.CodeNotFound, "a member without an owner: %v", err)
	for range 2 { // its note names its owner from now on
		testbed.Must(t, w.reconciler.Run(t.Context()))
	}
	s := b.Sandbox(box)
	testbed.Check(t, s.State == farm.SandboxReady && b.Fake.Has(used.ID) && b.Fake.Note(box.ID) != nil, "later: %+v", s)
	testbed.Must(t, w.handle(t.Context(), workertest.Task(b.CloseJob(box))))
	testbed.Check(t, !b.Fake.Has(used.ID) && b.Fake.Note(box.ID) == nil, "the close left a container or a note")
}

// Redis was restored from a snapshot that is older than a sandbox, and all workers were restarted meanwhile: the sandbox is restored from its
// container. It used to be removed, since the snapshot had the same epoch. A container without a record is removed only behind its deadline.
func TestSandboxNewerThanTheSnapshotIsAdopted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker()
	older, newer, expired := b.contained(w), b.contained(w), b.contained(w)
	s := b.Sandbox(expired)
	s.ExpiresAt = time.Now().Add(-time.Second)
	b.label(s)
	for _, key := range b.Redis.Keys() {
		if strings.HasSuffix(key, "sbx:"+newer.ID) || strings.HasSuffix(key, "sbx:"+expired.ID) {
			b.Redis.Del(key)
		}
	}
	next := b.worker()
	testbed.Must(t, next.reconciler.Run(t.Context()))
	for _, box := range []farm.Ref{older, newer} {
		if s := b.Sandbox(box); s.State != farm.SandboxReady || s.Node != "n1" || !b.Fake.Has(box.ID) {
			t.Errorf("sandbox %+v, container exists: %v", s, b.Fake.Has(box.ID))
		}
	}
	if _, err := b.Store.Sandbox(t.Context(), expired); farm.CodeOf(err) != farm.CodeNotFound || b.Fake.Has(expired.ID) {
		t.Errorf("a sandbox behind its deadline: %v, container exists: %v", err, b.Fake.Has(expired.ID))
	}
}

// The object store has lost the document of a sandbox's record: its container stays, whatever deadline the container carries, and the document is
// restored from it, also from the note of a pool's container. A record that cannot be restored does not stop the reconciler, and is closed in the end.
func TestLostDocumentIsRestored(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.pooling(64<<10, "python=2")
	// What makes a record large does not come back: names of variables first, then labels.
	labels, large := map[string]string{"label": strings.Repeat("x", 500)}, map[string]string{}
	for i := range 256 {
		large[fmt.Sprintf("V%03d", i)+strings.Repeat("X", 100)] = ""
	}
	pooledJob, pooled := b.Claimed(b.member(w), func(s *farm.Sandbox) { s.Spec.Labels = large })
	testbed.Must(t, w.handle(t.Context(), workertest.Task(pooledJob)))
	ready := func() *farm.Sandbox {
		box := &farm.Sandbox{ID: farm.NewID(farm.SandboxPrefix), Tenant: workertest.Tenant, Spec: farm.SandboxSpec{Image: "python", Network: farm.NetworkNone, TTLSeconds: 3600, Labels: labels, Env: large}}
		job := b.Accept(farm.KindCreate, box.ID, &farm.Request{Sandbox: &box.Spec}, func(a *store.Accept) { a.Sandbox = box })
		claim := b.Claim(job, "wrk_setup")
		b.Move(box.Ref(), farm.SandboxStarting, farm.SandboxReady)
		_, err := b.Store.Finish(t.Context(), store.Finish{Ref: job, Attempt: claim.Job.Attempt, State: farm.JobCompleted})
		testbed.Must(t, err)
		b.Fake.Put(box.ID, true)
		return b.Sandbox(box.Ref())
	}
	renewed, bare, gone := ready(), ready(), b.Ready()
	renewed.ExpiresAt = time.Now().Add(-time.Hour) // when its container was made
	b.label(renewed)
	for _, ref := range []farm.Ref{renewed.Ref(), bare.Ref(), pooled} {
		n, err := b.Blobs.DeletePrefix(t.Context(), farm.RecordsOf(ref))
		testbed.Require(t, n == 1 && err == nil, "%d documents of %s are removed, %v", n, ref.ID, err)
	}
	command := b.Command(bare.Ref(), "true")

	for range 2 {
		testbed.Must(t, w.reconciler.Run(t.Context()))
		for _, ref := range []farm.Ref{renewed.Ref(), bare.Ref(), pooled} {
			testbed.Check(t, b.Fake.Has(ref.ID), "the container of %s is removed", ref.ID)
		}
		for ref, want := range map[farm.Ref]map[string]string{renewed.Ref(): labels, pooled: nil} {
			s := b.SandboxIs(ref, farm.SandboxReady)
			testbed.Diff(t, "labels", want, s.Spec.Labels)
			testbed.Check(t, s.Spec.Env == nil, "the variables %v", s.Spec.Env)
		}
		b.SandboxIs(gone, farm.SandboxLost)
		_, err := b.Store.Sandbox(t.Context(), bare.Ref())
		testbed.Check(t, errors.Is(err, store.ErrDocumentGone) && farm.CodeOf(err) == farm.CodeInternal, "without a document: %v", err)
	}
	failed := b.done(w, command, farm.JobFailed)
	testbed.Diff(t, "code of a command", farm.CodeConflict, failed.Error.Code)
	b.done(w, b.CloseJob(bare.Ref()), farm.JobCompleted)
	b.SandboxIs(bare.Ref(), farm.SandboxClosed)
	testbed.Check(t, !b.Fake.Has(bare.ID), "the container of a closed sandbox is left")
}

// The record of a sandbox that was lost while its node was gone outlives the deadline. So its container, once the node is back, is
// removed however short ended records are kept, and does not look like one that Redis has lost.
func TestLostSandboxDoesNotComeBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker()
	box := b.contained(w)
	out, err := w.dispatch.EndNode(t.Context(), dispatch.NodeEnd{Node: "n1", Reason: "its node is gone"})
	testbed.Require(t, err == nil && len(out.Lost) == 1 && out.Done, "EndNode = %+v, %v", out, err)
	left := time.Until(b.Sandbox(box).ExpiresAt)
	for _, key := range b.Redis.Keys() {
		if strings.HasSuffix(key, "sbx:"+box.ID) && b.Redis.TTL(key) < left {
			t.Errorf("its record is kept for %v, the sandbox may live for %v", b.Redis.TTL(key), left)
		}
	}
	testbed.Must(t, w.reconciler.Run(t.Context()))
	s := b.Sandbox(box)
	testbed.Check(t, s.State == farm.SandboxLost && !b.Fake.Has(box.ID), "sandbox %s, container exists: %v", s.State, b.Fake.Has(box.ID))
	b.nothingUnfinished() // from now on the record may go
}

// The reconciler retires idle members whose container has ended, and all members of a node once no worker on it wants a pool.
func TestReconcileRetiresMembers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.pooling(64<<10, "python=2")
	gone, left := b.member(w), b.member(w)
	b.Fake.Forget(gone.ID)
	testbed.Must(t, w.reconciler.Run(t.Context()))
	_, err := b.Store.Member(t.Context(), gone.ID)
	testbed.Check(t, err != nil && b.IdleMembers() == 1, "a member without a container is offered (%d)", b.IdleMembers())
	b.cfg.Pool = nil
	none := b.measured(64<<10, 4)
	testbed.Must(t, b.Store.Heartbeat(t.Context(), farm.Worker{ID: w.id, Node: "n1", Pool: []farm.PoolStock{{Image: "python", Target: 2}}}))
	testbed.Must(t, none.reconciler.Run(t.Context()))
	testbed.Check(t, b.IdleMembers() == 1, "a worker without a pool removed members that another one wants")
	testbed.Must(t, b.Store.RemoveWorker(t.Context(), w.id))
	testbed.Must(t, none.reconciler.Run(t.Context()))
	testbed.Check(t, b.IdleMembers() == 0 && !b.Fake.Has(left.ID), "members that no worker wants still exist")
}

// keyCounter counts the keys that commands name.
type keyCounter struct{ keys atomic.Int64 }

func (c *keyCounter) count(cmd redis.Cmder) {
	switch args := cmd.Args(); cmd.Name() {
	case "evalsha", "eval":
		if n, ok := args[2].(int); ok {
			c.keys.Add(int64(n))
		}
	case "hello", "client": // of a new connection, which a busy machine may need at any time
	default:
		c.keys.Add(1)
	}
}

// A reconciler reads what concerns its own node: with 10 sandboxes in a farm of 10,000 fewer than 50 keys.
func TestReconcileReadsItsOwnNode(t *testing.T) {
	t.Parallel()
	b := setup(t)
	counter := &keyCounter{}
	b.deps.Store = b.StoreBehind(testbed.Hook(func(cmds []redis.Cmder, next func(...redis.Cmder) error) error {
		for _, cmd := range cmds {
			counter.count(cmd)
		}
		return next(cmds...)
	}))
	w := b.measured(64<<10, 64)
	for range 10 {
		b.Fake.Put(b.Ready().ID, true)
	}
	others := b.Ready()
	_, err := b.Store.MoveSandbox(t.Context(), store.Move{Ref: others, Node: "n2"})
	testbed.Must(t, err)

	rdb := redis.NewClient(&redis.Options{Addr: b.Redis.Addr()})
	defer func() { _ = rdb.Close() }()
	record, err := rdb.HGetAll(t.Context(), "sf:{acme}:sbx:"+others.ID).Result()
	testbed.Must(t, err)
	const records, tenants = 10_000, 20
	for tenant := range tenants {
		name := fmt.Sprintf("tenant%d", tenant)
		pipe := rdb.Pipeline()
		pipe.SAdd(t.Context(), "sf:tenants", name)
		for i := range records / tenants {
			id := fmt.Sprintf("sbx_%d", i)
			pipe.HSet(t.Context(), "sf:{"+name+"}:sbx:"+id, record)
			pipe.ZAdd(t.Context(), "sf:{"+name+"}:openboxes", redis.Z{Score: float64(i), Member: id})
		}
		_, err := pipe.Exec(t.Context())
		testbed.Must(t, err)
		_, err = b.Store.RepairUse(t.Context(), name) // makes the index of nodes
		testbed.Must(t, err)
	}
	nodes, err := b.Store.NodesInUse(t.Context())
	testbed.Require(t, err == nil && len(nodes["n2"]) == tenants+1 && len(nodes["n1"]) == 1, "NodesInUse = %d nodes, %v", len(nodes), err)

	testbed.Must(t, w.reconciler.Run(t.Context())) // makes reservations
	w.usage.Wait()
	counter.keys.Store(0)
	testbed.Must(t, w.reconciler.Run(t.Context()))
	w.usage.Wait()
	n := counter.keys.Load()
	t.Logf("a reconcile of 10 sandboxes in a farm of %d names %d keys", records, n)
	testbed.Check(t, n < 50, "a reconcile of 10 sandboxes names %d keys, want fewer than 50", n)
	open, err := b.Store.OpenOnNode(t.Context(), w.node.ID())
	testbed.Check(t, err == nil && len(open) == 10, "the node has %d open sandboxes, %v", len(open), err)
	for _, s := range open {
		testbed.Diff(t, fmt.Sprintf("sandbox %s", s.ID), farm.SandboxReady, s.State)
	}
}

package dispatch_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/dispatch"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/queue"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// gone is a node n1 whose workers and engine are gone, with a sandbox in every state, and a sandbox on n2.
type gone struct {
	claimed, starting, run                 farm.Ref // creations
	begun, waiting, forElsewhere           farm.Ref // executes
	closeJob                               farm.Ref
	ready, closing, closeFailed, elsewhere farm.Ref // sandboxes
}

func ref(id string) farm.Ref { return farm.Ref{Tenant: storetest.Tenant, ID: id} }

func (b *bundle) begin(t *testing.T, a store.Accept, states ...farm.SandboxState) farm.Ref {
	t.Helper()
	job := b.submit(t, a).Ref()
	_, err := b.store.Claim(t.Context(), job, "w1")
	testbed.Must(t, err)
	for _, to := range states {
		_, err := b.store.MoveSandbox(t.Context(), store.Move{Ref: ref(a.Sandbox.ID), To: to, Node: "n1"})
		testbed.Must(t, err)
	}
	return job
}

func (b *bundle) gone(t *testing.T) gone {
	t.Helper()
	ctx := t.Context()
	var g gone
	size := farm.Capacity{MemoryMB: 1000, CPUs: 4}
	_, err := b.store.RenewNode(ctx, "n1")
	testbed.Must(t, err)

	pooled := storetest.Create() // claimed a member of the pool of n1
	pooled.Job.Queue, pooled.Sandbox.Node = farm.NodeQueue("n1"), "n1"
	testbed.Must(t, b.store.BeginMember(ctx, store.Member{ID: pooled.Sandbox.ID, Node: "n1", Image: "python", Network: farm.NetworkNone}))
	g.claimed = b.submit(t, pooled).Ref()
	testbed.Must(t, b.store.BeginMember(ctx, store.Member{ID: "sbx_idle", Node: "n1", Image: "python", Network: farm.NetworkNone}))

	g.starting = b.begin(t, storetest.Create(), farm.SandboxStarting)
	run := storetest.Create()
	run.Job.Kind, run.Request.Command = farm.KindRun, &farm.CommandRequest{Commands: []string{"true"}}
	g.run = b.begin(t, run, farm.SandboxStarting, farm.SandboxReady)

	g.ready = ref(b.box(t))
	g.begun = b.submit(t, storetest.Execute(g.ready.ID)).Ref()
	_, err = b.store.Claim(ctx, g.begun, "w1")
	testbed.Must(t, err)
	g.waiting = b.submit(t, storetest.Execute(g.ready.ID)).Ref()
	for _, s := range []farm.Ref{g.ready, ref("sbx_unknown")} {
		if ok, _, err := b.store.Reserve(ctx, store.ReserveRequest{Node: "n1", Capacity: size, Sandbox: s, Want: farm.Capacity{MemoryMB: 10, CPUs: 1}}); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	_, err = b.store.RestoreGPUs(ctx, "n1", g.ready, 1, []string{"GPU-1"})
	testbed.Must(t, err)

	g.closing, g.closeFailed = ref(b.box(t)), ref(b.box(t))
	g.closeJob = b.submit(t, storetest.CloseJob(g.closing.ID)).Ref()
	_, err = b.store.Claim(ctx, g.closeJob, "w1")
	testbed.Must(t, err)
	_, err = b.store.MoveSandbox(ctx, store.Move{Ref: g.closeFailed, To: farm.SandboxClosing, Expired: true})
	testbed.Must(t, err)

	g.elsewhere = ref(b.box(t))
	_, err = b.store.MoveSandbox(ctx, store.Move{Ref: g.elsewhere, Node: "n2"})
	testbed.Must(t, err)
	g.forElsewhere = b.submit(t, storetest.Execute(g.elsewhere.ID)).Ref()
	return g
}

// check checks that everything of the node has ended as its callers are to be told.
func (g gone) check(t *testing.T, b *bundle) {
	t.Helper()
	ctx := t.Context()
	for _, job := range []farm.Ref{g.claimed, g.starting} {
		r, err := b.store.Route(ctx, job)
		if err != nil || r.Queue != farm.QueueCPU || r.Node != "" || r.SandboxState != farm.SandboxQueued || r.State.Final() {
			t.Errorf("a creation that can continue elsewhere: %+v, %v", r, err)
			continue
		}
		c, err := b.store.Claim(ctx, job, "w2")
		testbed.Check(t, err == nil && c.Sandbox.Node == "", "another node cannot claim it: %+v, %v", c, err)
	}
	for job, when := range map[farm.Ref]string{g.run: "while the job ran", g.begun: "while the job ran", g.waiting: "before the job started"} {
		j, err := b.store.Job(ctx, job)
		if err != nil || j.State != farm.JobLost || j.Error == nil || !strings.Contains(j.Error.Message, when) || !strings.Contains(j.Error.Message, "its node is gone") {
			t.Errorf("a job of a lost sandbox: %+v, %v", j, err)
		}
	}
	b.state(t, g.closeJob, farm.JobCompleted)
	b.state(t, g.forElsewhere, farm.JobQueued)
	for box, want := range map[farm.Ref]farm.SandboxState{
		g.ready: farm.SandboxLost, g.closing: farm.SandboxClosed, g.closeFailed: farm.SandboxExpired, g.elsewhere: farm.SandboxReady,
	} {
		s, err := b.store.Sandbox(ctx, box)
		testbed.Check(t, err == nil && s.State == want, "sandbox %+v, %v; want %s", s, err, want)
	}
	s, err := b.store.Sandbox(ctx, g.ready)
	testbed.Check(t, err == nil && s.Reason == "its node is gone", "reason of the lost sandbox: %+v, %v", s, err)
	reserved, err := b.store.Reservations(ctx, "n1")
	testbed.Check(t, err == nil && len(reserved) == 0, "reservations of the node: %v, %v", reserved, err)
	gpus, err := b.store.GPUs(ctx, "n1")
	testbed.Check(t, err == nil && !gpus.Open && len(gpus.Leases) == 0, "GPU leases of the node: %+v, %v", gpus, err)
	members, err := b.store.Members(ctx)
	testbed.Check(t, err == nil && len(members) == 0, "members of the node's pool: %v, %v", members, err)
	nodes, err := b.store.NodesInUse(ctx)
	_, left := nodes["n1"]
	testbed.Check(t, !left && err == nil, "nodes in use: %v, %v", nodes, err)
	for _, pattern := range []string{"asynq:{node-n1}*", "sf:{nodes}:tenants:n1", "sf:{" + storetest.Tenant + "}:on:n1"} {
		keys, err := b.rdb.Keys(ctx, pattern).Result()
		testbed.Check(t, err == nil && len(keys) == 0, "keys that are left: %v, %v", keys, err)
	}
	listed, err := b.rdb.SIsMember(ctx, "asynq:queues", "node-n1").Result()
	testbed.Check(t, err == nil && !listed, "the queue of the node is listed: %v, %v", listed, err)
}

// A node that never comes back strands nothing.
func TestEndNode(t *testing.T) {
	t.Parallel()
	b := setup(t)
	g := b.gone(t)
	out, err := b.EndNode(t.Context(), dispatch.NodeEnd{Node: "n1", Reason: "its node is gone"})
	testbed.Check(t, err == nil && out.Done && len(out.Lost) == 2 && out.Closed == 2 && out.Requeued == 2, "EndNode = %+v, %v", out, err)
	b.enqueued(t, farm.QueueCPU, g.claimed.ID, true)
	b.enqueued(t, farm.QueueCPU, g.starting.ID+".1", true)
	g.check(t, b)
	out, err = b.EndNode(t.Context(), dispatch.NodeEnd{Node: "n1", Reason: "its node is gone"})
	testbed.Check(t, err == nil && out.Done && len(out.Lost)+out.Closed+out.Requeued == 0, "a second EndNode = %+v, %v", out, err)
}

// EndNode is killed before each of its calls to Redis in turn. The next leader's pass, and the sweep, do the rest.
func TestEndNodeIsResumed(t *testing.T) {
	t.Parallel()
	for n, ended := 0, false; !ended; n++ {
		b := setup(t)
		g := b.gone(t)
		dying := b.dying(t, n)
		_, err := dying.EndNode(t.Context(), dispatch.NodeEnd{Node: "n1", Reason: "its node is gone"})
		ended = err == nil
		out, err := b.EndNode(t.Context(), dispatch.NodeEnd{Node: "n1", Reason: "its node is gone"})
		testbed.Require(t, err == nil && out.Done, "killed before call %d: EndNode = %+v, %v", n, out, err)
		b.later(time.Minute)
		_, err = b.Sweep(t.Context(), storetest.Tenant)
		testbed.Must(t, err)
		g.check(t, b)
		testbed.Require(t, !t.Failed(), "killed before call %d", n)
	}
}

// dying is a dispatcher whose calls to Redis fail after the first n.
func (b *bundle) dying(t *testing.T, n int) *dispatch.Dispatcher {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: b.rdb.Options().Addr, MaxRetries: -1})
	end := &testbed.Crasher{}
	end.Arm(n+1, false)
	rdb.AddHook(end)
	s := store.New(rdb, queue.EnqueueLua(), store.Options{})
	t.Cleanup(func() { _, _ = s.Close(), rdb.Close() })
	return dispatch.New(s, queue.NewClient(rdb, nil), farm.DefaultLimits(), slog.New(slog.DiscardHandler))
}

// A node that comes back while it is being ended keeps what is not ended yet, and all that it holds.
func TestEndNodeStopsWhenTheNodeIsBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	g := b.gone(t)
	asked := 0
	back := func(context.Context) (bool, error) { asked++; return asked > 2, nil }
	out, err := b.EndNode(t.Context(), dispatch.NodeEnd{Node: "n1", Reason: "its node is gone", Gone: back})
	testbed.Check(t, err == nil && !out.Done && len(out.Lost)+out.Closed+out.Requeued == 0, "EndNode = %+v, %v", out, err)
	b.state(t, g.waiting, farm.JobQueued)
	reserved, err := b.store.Reservations(t.Context(), "n1")
	testbed.Check(t, err == nil && len(reserved) == 2, "reservations of the node: %v, %v", reserved, err)
}

// If only the engine is gone, the node's workers move what they start, close what is closing, and keep what the node holds.
func TestEndNodeWithALiveWorker(t *testing.T) {
	t.Parallel()
	b := setup(t)
	g := b.gone(t)
	testbed.Must(t, b.store.Heartbeat(t.Context(), farm.Worker{ID: "w1", Node: "n1"}))
	out, err := b.EndNode(t.Context(), dispatch.NodeEnd{Node: "n1", Reason: "its node is gone", WorkerLives: true})
	testbed.Check(t, err == nil && !out.Done && len(out.Lost) == 2 && out.Closed == 0 && out.Requeued == 1, "EndNode = %+v, %v", out, err)
	b.state(t, g.starting, farm.JobRunning)
	b.state(t, g.begun, farm.JobLost)
	b.state(t, g.closeJob, farm.JobRunning)
	reserved, err := b.store.Reservations(t.Context(), "n1")
	testbed.Check(t, err == nil && len(reserved) == 2, "reservations of the node: %v, %v", reserved, err)
}

// A sandbox of the node whose time was up is expired, not lost.
func TestEndNodeAfterTheDeadline(t *testing.T) {
	t.Parallel()
	b := setup(t)
	box := ref(b.box(t))
	waiting := b.submit(t, storetest.Execute(box.ID)).Ref()
	b.later(2 * time.Hour)
	out, err := b.EndNode(t.Context(), dispatch.NodeEnd{Node: "n1", Reason: "its node is gone"})
	testbed.Check(t, err == nil && out.Closed == 1, "EndNode = %+v, %v", out, err)
	s, err := b.store.Sandbox(t.Context(), box)
	testbed.Check(t, err == nil && s.State == farm.SandboxExpired, "sandbox %+v, %v", s, err)
	b.state(t, waiting, farm.JobCanceled)
}

// A sandbox whose document the object store has lost does not keep its node from being ended: it is lost, or expired, like the others.
func TestEndNodeWithoutDocuments(t *testing.T) {
	t.Parallel()
	b := setup(t)
	documents := storetest.NewDocuments()
	b.store = store.New(b.rdb, queue.EnqueueLua(), store.Options{Documents: documents})
	b.Dispatcher = dispatch.New(b.store, b.queue, farm.DefaultLimits(), nil)
	want := map[farm.Ref]farm.SandboxState{}
	for state, ttl := range map[farm.SandboxState]int{farm.SandboxLost: 4 * 3600, farm.SandboxExpired: 3600} {
		wide := storetest.Create()
		wide.Sandbox.Spec.Labels, wide.Sandbox.Spec.TTLSeconds = map[string]string{"wide": strings.Repeat("x", 20<<10)}, ttl
		job := b.begin(t, wide, farm.SandboxStarting, farm.SandboxReady)
		_, err := b.store.Finish(t.Context(), store.Finish{Ref: job, Attempt: 1, State: farm.JobCompleted})
		testbed.Must(t, err)
		want[wide.Sandbox.Ref()] = state
	}
	testbed.Must(t, documents.Delete(t.Context(), documents.Keys()...))
	b.later(2 * time.Hour)
	out, err := b.EndNode(t.Context(), dispatch.NodeEnd{Node: "n1", Reason: "its node is gone"})
	testbed.Check(t, err == nil && out.Done && out.Closed == 1 && len(out.Lost) == 1, "EndNode = %+v, %v", out, err)
	for ref, state := range want {
		s, err := b.store.Sandbox(t.Context(), ref)
		testbed.Check(t, err == nil && s.State == state, "sandbox %+v, %v; want %s", s, err, state)
	}
}

// A sandbox that was closed before it had a node, and whose close failed, is closed.
func TestCloseUnplaced(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var boxes, closes []farm.Ref
	for range 2 {
		a := storetest.Create()
		b.submit(t, a)
		boxes = append(boxes, ref(a.Sandbox.ID))
		closes = append(closes, b.submit(t, storetest.CloseJob(a.Sandbox.ID)).Ref())
		testbed.Must(t, b.Force(t.Context(), a.Job.Ref(), farm.JobCanceled, nil))
	}
	testbed.Must(t, b.Force(t.Context(), closes[0], farm.JobFailed, &farm.JobError{Code: farm.CodeInternal, Message: "the engine was busy"}))
	n, err := b.CloseUnplaced(t.Context(), []string{storetest.Tenant})
	testbed.Check(t, n == 1 && err == nil, "CloseUnplaced = %d, %v", n, err)
	for i, want := range []farm.SandboxState{farm.SandboxClosed, farm.SandboxClosing} {
		s, err := b.store.Sandbox(t.Context(), boxes[i])
		testbed.Check(t, err == nil && s.State == want, "sandbox %d: %+v, %v; want %s", i, s, err, want)
	}
}

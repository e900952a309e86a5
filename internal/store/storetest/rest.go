package storetest

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func callbacks(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	a := Execute(box.ID)
	a.Job.CallbackURL = "https://example.com"
	b.accept(t, a)
	quiet := b.accept(t, Execute(box.ID)).Job
	if refs, err := b.Callbacks(t.Context(), Tenant, 10); err != nil || len(refs) != 0 {
		t.Errorf("Callbacks before the end = %v, %v", refs, err)
	}
	job := b.claim(t, a.Job.Ref(), "w").Job
	end, err := b.Finish(t.Context(), store.Finish{Ref: job.Ref(), Attempt: 1, State: farm.JobCompleted})
	testbed.Check(t, err == nil && end.Callback, "Finish = %+v, %v; want a callback", end, err)
	b.finish(t, b.claim(t, quiet.Ref(), "w").Job, farm.JobCompleted)
	refs, err := b.Callbacks(t.Context(), Tenant, 10)
	diff := cmp.Diff([]farm.Ref{job.Ref()}, refs)
	testbed.Check(t, err == nil && diff == "", "Callbacks = %v, %v", refs, err)
	testbed.Must(t, b.CallbackDone(t.Context(), job.Ref()))
	refs, err = b.Callbacks(t.Context(), Tenant, 10)
	testbed.Check(t, err == nil && len(refs) == 0, "Callbacks after that = %v, %v", refs, err)
}

func workers(t *testing.T, factory Factory) {
	b := setup(t, factory)
	ctx := t.Context()
	one := farm.Worker{ID: "w1", Node: "n", Images: []farm.Image{{Name: "python", Ref: "a"}, {Name: "node"}}, SeenAt: b.clock.Now()}
	two := farm.Worker{ID: "w2", Node: "n", Images: []farm.Image{{Name: "python", Ref: "b"}, {Name: "ai"}}, SeenAt: b.clock.Now()}
	for _, w := range []farm.Worker{two, one, one} {
		testbed.Must(t, b.Heartbeat(ctx, w))
	}
	got, err := b.Workers(ctx)
	diff := cmp.Diff([]farm.Worker{one, two}, got)
	testbed.Check(t, err == nil && diff == "", "Workers (-want +got), %v:\n%s", err, diff)
	ttl := b.rdb.TTL(ctx, b.prefix+"worker:w1").Val()
	testbed.Check(t, ttl > 0 && ttl <= store.HeartbeatTTL, "a heartbeat lives for %v, want %v", ttl, store.HeartbeatTTL)
	images, err := b.OfferedImages(ctx)
	diff = cmp.Diff([]farm.Image{{Name: "ai"}, {Name: "node"}, {Name: "python", Ref: "a"}}, images)
	testbed.Check(t, err == nil && diff == "", "Offered (-want +got), %v:\n%s", err, diff)
	testbed.Must(t, b.RemoveWorker(ctx, "w1"))
	testbed.Must(t, b.rdb.Del(ctx, b.prefix+"worker:w2").Err()) // imitates its expiry
	for _, id := range []string{"w1", "w2"} {
		alive, err := b.Alive(ctx, id)
		testbed.Check(t, err == nil && !alive, "Alive(%s) = %v, %v", id, alive, err)
	}
	got, err = b.Workers(ctx)
	testbed.Check(t, err == nil && len(got) == 0, "Workers = %v, %v", got, err)
}

func locks(t *testing.T, factory Factory) {
	b := setup(t, factory)
	ctx := t.Context()
	lock := func(owner string, want bool) {
		t.Helper()
		held, err := b.Lock(ctx, "leader", owner, time.Minute)
		testbed.Check(t, err == nil && held == want, "Lock(%s) = %v, %v; want %v", owner, held, err, want)
	}
	lock("a", true)
	lock("b", false)
	lock("a", true) // renewed
	ttl := b.rdb.PTTL(ctx, b.prefix+"lock:leader").Val()
	testbed.Check(t, ttl > 0 && ttl <= time.Minute, "the lock is held for %v", ttl)
	testbed.Must(t, b.Unlock(ctx, "leader", "b"))
	lock("b", false)
	testbed.Must(t, b.Unlock(ctx, "leader", "a"))
	lock("b", true)
}

func openRoutes(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	running, waiting, inline := b.accept(t, Execute(box.ID)).Job, b.accept(t, Execute(box.ID)).Job, b.accept(t, Read(box.ID)).Job
	b.claim(t, running.Ref(), "w9")
	fresh := Create()
	b.accept(t, fresh)
	routes, next, err := b.OpenRoutes(t.Context(), Tenant, "")
	testbed.Must(t, err)
	want := []store.Route{
		{
			Ref: running.Ref(), Kind: farm.KindExecute, State: farm.JobRunning, Attempt: 1, Worker: "w9", CreatedAt: running.CreatedAt,
			TimeoutSeconds: 30, Head: true, SandboxID: box.ID, SandboxState: farm.SandboxBusy, Node: "n1",
		},
		{
			Ref: inline.Ref(), Kind: farm.KindFile, State: farm.JobQueued, CreatedAt: inline.CreatedAt, Inline: true, SandboxID: box.ID,
			SandboxState: farm.SandboxBusy, Node: "n1",
		},
		{
			Ref: fresh.Job.Ref(), Kind: farm.KindCreate, State: farm.JobQueued, CreatedAt: inline.CreatedAt, Queue: farm.QueueCPU, TimeoutSeconds: 60,
			Head: true, SandboxID: fresh.Sandbox.ID, SandboxState: farm.SandboxQueued,
		},
	}
	testbed.Diff(t, "routes", want, routes)
	if routes, next, err = b.OpenRoutes(t.Context(), Tenant, next); err != nil || len(routes) != 0 || next != "" {
		t.Errorf("behind the end: %v, %q, %v", routes, next, err)
	}
	_, err = b.MoveSandbox(t.Context(), store.Move{Ref: box, To: farm.SandboxLost})
	testbed.Must(t, err)
	routes, _, err = b.OpenRoutes(t.Context(), Tenant, "")
	if err != nil || len(routes) != 4 || routes[1].Ref != waiting.Ref() || routes[1].SandboxState != farm.SandboxLost {
		t.Errorf("the waiting job of a lost sandbox is not listed: %+v, %v", routes, err)
	}
}

package worker

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// sized accepts the creation of a sandbox of a size.
func (b *bundle) sized(memoryMB int, cpus float64) (job, sandbox farm.Ref) {
	b.t.Helper()
	box := &farm.Sandbox{
		ID: farm.NewID(farm.SandboxPrefix), Tenant: tenant,
		Spec: farm.SandboxSpec{Image: "python", Network: farm.NetworkNone, TTLSeconds: 3600, Resources: farm.Resources{MemoryMB: memoryMB, CPUs: cpus}},
	}
	job = b.accept(farm.KindCreate, box.ID, &farm.Request{Sandbox: &box.Spec}, func(a *store.Accept) { a.Sandbox = box })
	return job, farm.Ref{Tenant: tenant, ID: box.ID}
}

// measured makes a worker on a node of a size.
func (b *bundle) measured(memoryMB, cores int) *Worker {
	b.t.Helper()
	b.eng.mu.Lock()
	b.eng.memory, b.eng.cores = memoryMB, cores
	b.eng.mu.Unlock()
	w := b.worker()
	must(b.t, w.measure(b.t.Context()))
	return w
}

func (b *bundle) promised(want farm.Capacity) {
	b.t.Helper()
	nodes, err := b.store.ReportCapacity(b.t.Context(), "other", farm.Capacity{})
	must(b.t, err)
	if got := nodes["n1"].Reserved; got != want {
		b.t.Errorf("promised are %+v, want %+v", got, want)
	}
}

func TestCapacityIsWhatTheSettingsLeave(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.cfg.MemoryReserveMB, b.cfg.MemoryOvercommit, b.cfg.CPUOvercommit = 1000, 1.5, 3
	if got, want := b.measured(5000, 2).room.size(), (farm.Capacity{MemoryMB: 6000, CPUs: 6}); got != want {
		t.Errorf("capacity %+v, want %+v", got, want)
	}
	b = setup(t) // by default a small machine holds many idle sandboxes
	if got, want := b.measured(5000, 2).room.size(), (farm.Capacity{MemoryMB: 80_000, CPUs: 256}); got != want {
		t.Errorf("capacity by default %+v, want %+v", got, want)
	}
}

// A create that finds no room goes back to its queue as it was, and begins when there is room.
func TestCreateWithoutRoomWaits(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.cfg.MemoryOvercommit, b.cfg.CPUOvercommit = 1, 4
	w := b.measured(3000, 4)
	now := time.Now()
	w.room.now = func() time.Time { return now } // no pause ends by itself
	first, box := b.sized(2048, 1)
	claim, err := b.store.Claim(t.Context(), first, w.id)
	must(t, err)
	if ok, err := w.place(t.Context(), w.runs.add(claim)); err != nil || !ok {
		t.Fatalf("place = %v, %v", ok, err)
	}
	b.promised(farm.Capacity{MemoryMB: 2048, CPUs: 1})
	second, other := b.sized(2048, 1)
	must(t, w.handle(t.Context(), task(second)))
	if job, s := b.job(second), b.sandbox(other); job.State != farm.JobQueued || job.Attempt-job.Uncounted != 0 || s.State != farm.SandboxQueued || s.Node != "" {
		t.Errorf("job %+v, sandbox %+v", job, s)
	}
	b.promised(farm.Capacity{MemoryMB: 2048, CPUs: 1})
	if w.gate(farm.QueueCPU) || !w.gate(farm.QueueControl) || !w.gate(farm.NodeQueue("n1")) {
		t.Error("the gate of creates is open, or another one closed")
	}
	// The first one ends before it is ready: what it was promised is there again, for whoever waits, at once.
	if err := w.abandon(t.Context(), &run{Claim: claim}, errTest); err == nil {
		t.Error("abandoning gave no error")
	}
	if s := b.sandbox(box); s.State != farm.SandboxFailed && s.State != farm.SandboxQueued {
		t.Errorf("sandbox is %s", s.State)
	}
	b.promised(farm.Capacity{})
	if !w.gate(farm.QueueCPU) {
		t.Error("the gate stays closed")
	}
	claim, err = b.store.Claim(t.Context(), second, w.id)
	must(t, err)
	if ok, err := w.place(t.Context(), &run{Claim: claim}); err != nil || !ok {
		t.Errorf("place = %v, %v", ok, err)
	}
}

func TestCancelMeetsCreateWithoutRoom(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.measured(1000, 4)
	job, box := b.sized(2048, 1)
	claim, err := b.store.Claim(t.Context(), job, w.id)
	must(t, err)
	if _, _, err := b.store.Cancel(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	must(t, w.giveBack(t.Context(), &run{Claim: claim}))
	if got, s := b.job(job), b.sandbox(box); got.State != farm.JobCanceled || s.State != farm.SandboxClosed {
		t.Errorf("job %s, sandbox %s", got.State, s.State)
	}
}

func TestClosedAndLostSandboxesLeaveTheirRoom(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.measured(5000, 4)
	closed, lost := b.ready(), b.ready()
	for _, s := range []farm.Ref{closed, lost} {
		_, _, err := b.store.Reserve(t.Context(), store.ReserveRequest{Node: "n1", Capacity: w.room.size(), Sandbox: s, Want: farm.Capacity{MemoryMB: 100, CPUs: 1}})
		must(t, err)
	}
	b.promised(farm.Capacity{MemoryMB: 200, CPUs: 2})
	must(t, w.handle(t.Context(), task(b.closeJob(closed))))
	b.promised(farm.Capacity{MemoryMB: 100, CPUs: 1})
	w.lose(t.Context(), b.sandbox(lost), "", "it is a test")
	b.promised(farm.Capacity{})
}

// Containers without a promise get one; promises without a sandbox go, but not while one may be on its way.
func TestReconcileCorrectsRoom(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.measured(5000, 4)
	b.eng.put(b.ready().ID, true) // of no size, as before there were promises
	job, sized := b.sized(300, 0.5)
	claim, err := b.store.Claim(t.Context(), job, w.id)
	must(t, err)
	b.move(sized, farm.SandboxStarting, farm.SandboxReady)
	_, err = b.store.Finish(t.Context(), store.Finish{Ref: job, Attempt: claim.Job.Attempt, State: farm.JobCompleted})
	must(t, err)
	b.eng.put(sized.ID, true)
	_, waiting := b.sized(200, 1)
	gone := farm.Ref{Tenant: tenant, ID: farm.NewID(farm.SandboxPrefix)}
	for _, s := range []farm.Ref{waiting, gone} {
		_, _, err := b.store.Reserve(t.Context(), store.ReserveRequest{Node: "n1", Capacity: w.room.size(), Sandbox: s, Want: farm.Capacity{MemoryMB: 10, CPUs: 0.1}})
		must(t, err)
	}
	must(t, w.reconcile(t.Context()))
	b.promised(farm.Capacity{MemoryMB: 320, CPUs: 0.7})
	w.now = func() time.Time { return time.Now().Add(3 * time.Minute) }
	must(t, w.reconcile(t.Context()))
	b.promised(farm.Capacity{MemoryMB: 310, CPUs: 0.6}) // what is gone has left; what waits may still come here
}

func TestGateOfCreates(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000_000, 0)
	capacity := farm.Capacity{MemoryMB: 1000, CPUs: 10}
	of := func(own, other int) map[string]store.NodeCapacity {
		return map[string]store.NodeCapacity{
			"a": {Capacity: capacity, Reserved: farm.Capacity{MemoryMB: own}}, "b": {Capacity: capacity, Reserved: farm.Capacity{MemoryMB: other}},
		}
	}
	wakes := make(chan struct{}, 100)
	fresh := func(nodes map[string]store.NodeCapacity) *room {
		return &room{node: "a", smallest: farm.Capacity{MemoryMB: 64, CPUs: 0.1}, now: func() time.Time { return now }, wake: func() { wakes <- struct{}{} }, nodes: nodes}
	}
	for name, c := range map[string]struct {
		nodes map[string]store.NodeCapacity
		open  bool
	}{
		"nothing known":             {nil, true},
		"empty":                     {of(0, 0), true},
		"the smallest fits":         {of(936, 936), true},
		"the smallest does not fit": {of(937, 0), false},
		"a little fuller":           {of(500, 300), true},
		"the other is full":         {of(500, 1000), true},
	} {
		if got := fresh(c.nodes).open(); got != c.open {
			t.Errorf("%s: open is %v", name, got)
		}
	}

	r := fresh(of(600, 0)) // much fuller: one create now and then
	for i := range 3 {
		if !r.open() || r.open() {
			t.Errorf("round %d: not one create is taken by the fuller node", i)
		}
		<-wakes
		now = now.Add(turnEvery)
	}

	r = fresh(of(0, 0))
	for _, pause := range []time.Duration{firstPause, 2 * firstPause, 4 * firstPause} {
		r.missed()
		now = now.Add(pause - time.Millisecond)
		if r.open() {
			t.Errorf("open within the pause of %v", pause)
		}
		if now = now.Add(time.Millisecond); !r.open() {
			t.Errorf("closed after the pause of %v", pause)
		}
		<-wakes
	}
	for range 20 {
		r.missed()
	}
	if now = now.Add(longPause); !r.open() {
		t.Error("the pauses grow without end")
	}
	r.missed()
	r.learn(of(100, 0))
	if r.open() {
		t.Error("less room ended the pause")
	}
	r.learn(of(50, 0))
	if !r.open() {
		t.Error("more room did not end the pause")
	}
}

// The sandboxes of an engine that stays silent are told lost; one that answers again in time keeps them.
func TestSilentEngineLosesItsSandboxes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.measured(5000, 4)
	var mu sync.Mutex
	now := time.Now()
	w.now = func() time.Time { mu.Lock(); defer mu.Unlock(); return now }
	pass := func(d time.Duration) { mu.Lock(); defer mu.Unlock(); now = now.Add(d) }
	box := b.ready()
	waiting := b.command(box, "echo")
	for _, up := range []bool{false, true, false} {
		must(t, w.engineIs(t.Context(), up))
		if w.gate(farm.QueueCPU) != up {
			t.Errorf("engine up %v, gate open %v", up, !up)
		}
		if nodes, err := b.store.ReportCapacity(t.Context(), "other", farm.Capacity{}); err != nil || (nodes["n1"].Capacity.MemoryMB > 0) != up {
			t.Errorf("engine up %v, room %+v, %v", up, nodes["n1"], err)
		}
		pass(w.cfg.EnginePatience - time.Second)
	}
	must(t, w.engineIs(t.Context(), false))
	w.background.Wait()
	if s := b.sandbox(box); s.State != farm.SandboxReady {
		t.Fatalf("before the time is up the sandbox is %s", s.State)
	}
	pass(time.Second)
	must(t, w.engineIs(t.Context(), false))
	w.background.Wait()
	if s, job := b.sandbox(box), b.job(waiting); s.State != farm.SandboxLost || !strings.Contains(s.Reason, "does not answer") || job.State != farm.JobLost {
		t.Errorf("sandbox %s (%s), its job %s", s.State, s.Reason, job.State)
	}
}

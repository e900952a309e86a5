package worker

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// handClock is a clock that a test moves.
type handClock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *handClock) read() time.Time { c.mu.Lock(); defer c.mu.Unlock(); return c.now }

func (c *handClock) pass(d time.Duration) { c.mu.Lock(); defer c.mu.Unlock(); c.now = c.now.Add(d) }

// What is being started on an engine that stays silent goes back to its queue: soon when another node has room, later when none
// has. It is not lost, and nothing of it stays with the node.
func TestStartLeavesASilentEngine(t *testing.T) {
	t.Parallel()
	for _, kind := range []farm.JobKind{farm.KindCreate, farm.KindRun} {
		for _, other := range []bool{true, false} {
			t.Run(string(kind)+map[bool]string{true: "ToAnotherNode", false: "WaitsForItsEngine"}[other], func(t *testing.T) {
				t.Parallel()
				b := setup(t)
				b.cfg.CreateTimeout, b.cfg.EnginePatience = time.Hour, time.Minute
				w := b.measured(5000, 4)
				clock := &handClock{now: time.Now()}
				w.now = clock.read
				patience := b.cfg.EnginePatience
				if other {
					patience = movePatience
					_, err := b.store.ReportCapacity(t.Context(), "n2", farm.Capacity{MemoryMB: 4000, CPUs: 4})
					must(t, err)
				}
				lost := b.ready()
				job, box := b.creation(kind)
				b.eng.CloseClientConnections()
				b.eng.Close()
				handled := make(chan error, 1)
				go func() { handled <- w.handle(t.Context(), task(job)) }()
				until(t, "the sandbox is being started", func() bool { return b.sandbox(box).State == farm.SandboxStarting })
				must(t, w.engineIs(t.Context(), false))
				clock.pass(patience - time.Second)
				must(t, w.engineIs(t.Context(), false))
				if got := b.job(job); got.State != farm.JobRunning {
					t.Errorf("before the time is up the job is %s", got.State)
				}
				clock.pass(time.Second)
				must(t, w.engineIs(t.Context(), false))
				must(t, <-handled)
				w.background.Wait()
				got, s := b.job(job), b.sandbox(box)
				if got.State != farm.JobQueued || got.Queue != farm.QueueCPU || got.Attempt != 1 || got.Uncounted != 1 {
					t.Errorf("job %+v", got)
				}
				if s.State != farm.SandboxQueued || s.Node != "" || s.Void != 1 || s.ExpiresAt.IsZero() {
					t.Errorf("sandbox %+v", s)
				}
				if told := b.progress(job); !strings.Contains(told, "engine") {
					t.Errorf("who follows the job is told %q", told)
				}
				promises, err := b.store.Reservations(t.Context(), "n1")
				if _, promised := promises[box]; promised || err != nil {
					t.Errorf("the node still promises it room (%v)", err)
				}
				var seen dto.Metric
				if err := w.seen.moved.Write(&seen); err != nil || seen.Counter.GetValue() != 1 {
					t.Errorf("%v creations are counted (%v)", seen.Counter.GetValue(), err)
				}
				if state := b.sandbox(lost).State; (state == farm.SandboxLost) == other {
					t.Errorf("the sandbox that somebody has is %s", state)
				}
				if w.gate(farm.QueueCPU) {
					t.Error("the worker would take it again at once")
				}
				claim, err := b.store.Claim(t.Context(), job, "wrk_other")
				if err != nil || claim.Job.Attempt != 2 || claim.Sandbox.Node != "" {
					t.Errorf("Claim by another worker = %+v, %v", claim, err)
				}
			})
		}
	}
}

func (b *bundle) progress(job farm.Ref) string {
	b.t.Helper()
	events, err := b.store.Events(b.t.Context(), job, "", 0)
	must(b.t, err)
	var told strings.Builder
	for _, e := range events {
		if e.Progress != nil {
			told.WriteString(e.Progress.Message)
		}
	}
	return told.String()
}

// A create whose member of the pool is on an engine that has died goes on at another node, and the member leaves the pool.
func TestClaimedMemberOfADeadEngineIsLeft(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.pooling(5000, "python=1")
	m := b.member(w, nil)
	_, err := b.store.ClaimMember(t.Context(), store.MemberClaim{Tenant: tenant, Image: "python", Network: farm.NetworkNone, DiskMB: m.Resources.DiskMB, Nodes: []string{"n1"}})
	must(t, err)
	box := &farm.Sandbox{ID: m.ID, Tenant: tenant, Node: "n1", Pooled: true, Spec: farm.SandboxSpec{Image: "python", Network: farm.NetworkNone, Resources: m.Resources, TTLSeconds: 3600}}
	job := b.accept(farm.KindCreate, box.ID, &farm.Request{Sandbox: &box.Spec}, func(a *store.Accept) {
		a.Sandbox, a.Job.Queue = box, farm.NodeQueue("n1")
	})
	w.links.drop(m.ID)
	b.eng.CloseClientConnections()
	b.eng.Close()
	must(t, w.handle(t.Context(), task(job)))
	if got := b.job(job); got.State != farm.JobQueued || got.Queue != farm.QueueCPU {
		t.Errorf("job %+v", got)
	}
	if _, err := b.store.Member(t.Context(), m.ID); !errors.Is(err, store.ErrNoMember) {
		t.Errorf("the member is still in the pool: %v", err)
	}
}

// A creation that is cancelled while its engine is silent ends; it is not sent elsewhere.
func TestCanceledStartOfASilentEngineEnds(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker()
	job, box := b.creation(farm.KindCreate)
	b.eng.Close()
	handled := make(chan error, 1)
	go func() { handled <- w.handle(t.Context(), task(job)) }()
	until(t, "the job is in hand", func() bool { r := w.runs.get(job.ID); return r != nil && r.start.Load() != nil })
	w.runs.get(job.ID).stop()
	must(t, <-handled)
	if got, s := b.job(job), b.sandbox(box); got.State != farm.JobCanceled || s.State != farm.SandboxFailed {
		t.Errorf("job %s, sandbox %s", got.State, s.State)
	}
}

// A worker that comes to itself when its creation has gone on at another node changes nothing of it.
func TestLateStartIsFenced(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.cfg.CreateTimeout = 500 * time.Millisecond
	w := b.worker()
	job, box := b.creation(farm.KindCreate)
	b.eng.Close()
	handled := make(chan error, 1)
	go func() { handled <- w.handle(t.Context(), task(job)) }()
	until(t, "the sandbox is being started", func() bool { return b.sandbox(box).State == farm.SandboxStarting })
	must(t, b.store.UnassignNode(t.Context(), job, 1, farm.QueueCPU))
	ready := store.Move{Ref: box, To: farm.SandboxStarting, Node: "n1", Job: job.ID, Attempt: 1}
	if _, err := b.store.MoveSandbox(t.Context(), ready); !errors.Is(err, store.ErrFenced) {
		t.Errorf("a step of an attempt that is void = %v", err)
	}
	must(t, b.store.Requeue(t.Context(), job, 1))
	claim, err := b.store.Claim(t.Context(), job, "wrk_other")
	must(t, err)
	_, err = b.store.MoveSandbox(t.Context(), store.Move{Ref: box, To: farm.SandboxStarting, Node: "n2", Job: job.ID, Attempt: claim.Job.Attempt})
	must(t, err)
	if err := <-handled; err != nil && !errors.Is(err, store.ErrFenced) {
		t.Errorf("the late worker's handler: %v", err)
	}
	if got, s := b.job(job), b.sandbox(box); got.State != farm.JobRunning || got.Worker != "wrk_other" || s.State != farm.SandboxStarting || s.Node != "n2" {
		t.Errorf("job %s of %s, sandbox %s on %s", got.State, got.Worker, s.State, s.Node)
	}
}

// Of a sandbox whose creation went on elsewhere the reconciler removes what was made before, and nothing of an open one that a
// worker has taken over on the same node.
func TestReconcilerRemovesWhatIsVoid(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.measured(5000, 4)
	made := func(box farm.Ref, attempt string) {
		b.eng.put(box.ID, true)
		b.eng.mu.Lock()
		defer b.eng.mu.Unlock()
		b.eng.labels["test-"+box.ID] = map[string]string{
			engine.LabelNamespace: "test", engine.LabelSandbox: box.ID, engine.LabelTenant: tenant, engine.LabelNode: "n1", labelAttempt: attempt,
		}
	}
	begin := func(attempts int) (job, box farm.Ref) {
		job, box = b.creation(farm.KindCreate)
		for n := range attempts {
			if n > 0 {
				must(t, b.store.Requeue(t.Context(), job, n))
			}
			_, err := b.store.Claim(t.Context(), job, w.id)
			must(t, err)
		}
		b.move(box, farm.SandboxStarting)
		return job, box
	}
	moved, left := begin(1)
	made(left, "1")
	must(t, b.store.UnassignNode(t.Context(), moved, 1, farm.QueueCPU))
	again, back := begin(2) // left behind once, and back on the same node
	made(back, "2")
	must(t, b.store.UnassignNode(t.Context(), again, 2, farm.QueueCPU))
	must(t, b.store.Requeue(t.Context(), again, 2))
	_, err := b.store.Claim(t.Context(), again, w.id)
	must(t, err)
	b.move(back, farm.SandboxStarting)
	_, taken := begin(2)
	made(taken, "1")

	if err := w.clearVoid(t.Context(), b.sandbox(taken)); err != nil || !b.eng.has(taken.ID) {
		t.Errorf("a takeover cleared what the worker before has made (%v)", err)
	}
	if err := w.clearVoid(t.Context(), b.sandbox(back)); err != nil || b.eng.has(back.ID) {
		t.Errorf("an attempt takes the container of one that was left behind (%v)", err)
	}
	made(back, "3")
	must(t, w.reconcile(t.Context()))
	if b.eng.has(left.ID) {
		t.Error("the container of a sandbox that is made elsewhere stays")
	}
	if !b.eng.has(back.ID) || !b.eng.has(taken.ID) {
		t.Error("a container that its sandbox has was removed")
	}
}

// What attempts up to the void one made is void, and so is a member of the pool: it was claimed before.
func TestVoid(t *testing.T) {
	t.Parallel()
	c := engine.Container{Labels: map[string]string{labelAttempt: "2"}}
	member := engine.Container{Labels: map[string]string{labelMember: "python"}}
	for last, want := range map[int][2]bool{0: {false, false}, 1: {false, true}, 2: {true, true}, 3: {true, true}} {
		s := &farm.Sandbox{Void: last}
		if got := [2]bool{void(c, s), void(member, s)}; got != want {
			t.Errorf("with attempts up to %d void: the container and the member are %v, want %v", last, got, want)
		}
	}
}

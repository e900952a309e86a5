package worker

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

// handClock is a clock that a test sets.
type handClock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *handClock) read() time.Time { c.mu.Lock(); defer c.mu.Unlock(); return c.now }

func (c *handClock) pass(d time.Duration) { c.mu.Lock(); defer c.mu.Unlock(); c.now = c.now.Add(d) }

// A create on a silent engine is requeued: soon if another node has room, later if none has. It is not lost, and the node
// keeps no reservation for it.
func TestCreateLeavesASilentEngine(t *testing.T) {
	t.Parallel()
	for _, kind := range []farm.JobKind{farm.KindCreate, farm.KindRun} {
		for _, other := range []bool{true, false} {
			t.Run(string(kind)+map[bool]string{true: "ToAnotherNode", false: "WaitsForItsEngine"}[other], func(t *testing.T) {
				t.Parallel()
				b := setup(t)
				b.cfg.CreateTimeout, b.cfg.EngineTimeout = time.Hour, time.Minute
				w := b.measured(5000, 4)
				clock := &handClock{now: time.Now()}
				w.now = clock.read
				timeout := b.cfg.EngineTimeout
				if other {
					timeout = moveTimeout
					_, err := b.Store.ReportCapacity(t.Context(), "n2", farm.Capacity{MemoryMB: 4000, CPUs: 4})
					workertest.Must(t, err)
				}
				lost := b.Ready()
				job, box := b.Creation(kind)
				b.Fake.CloseClientConnections()
				b.Fake.Close()
				handled := b.begin(w, job)
				testbed.Until(t, "the sandbox is being started", func() bool { return b.Sandbox(box).State == farm.SandboxStarting })
				workertest.Must(t, w.notePing(t.Context(), false))
				clock.pass(timeout - time.Second)
				workertest.Must(t, w.notePing(t.Context(), false))
				b.JobIs(job, farm.JobRunning)
				clock.pass(time.Second)
				workertest.Must(t, w.notePing(t.Context(), false))
				workertest.Must(t, <-handled)
				w.background.Wait()
				got, s := b.Job(job), b.Sandbox(box)
				if got.State != farm.JobQueued || got.Queue != farm.QueueCPU || got.Attempt != 1 || got.GracefulRequeues != 1 {
					t.Errorf("job %+v", got)
				}
				testbed.Check(t, s.State == farm.SandboxQueued && s.Node == "" && s.Generation == 2 && !s.ExpiresAt.IsZero(), "sandbox %+v", s)
				message := b.Progress(job)
				testbed.Check(t, strings.Contains(message, "engine"), "the progress event says %q", message)
				reservations, err := b.Store.Reservations(t.Context(), "n1")
				_, reserved := reservations[box]
				testbed.Check(t, !reserved && err == nil, "the node still has a reservation for it (%v)", err)
				var seen dto.Metric
				if err := w.metrics.moved.Write(&seen); err != nil || seen.Counter.GetValue() != 1 {
					t.Errorf("%v creations are counted (%v)", seen.Counter.GetValue(), err)
				}
				state := b.Sandbox(lost).State
				testbed.Check(t, (state == farm.SandboxLost) != other, "the sandbox that has an owner is %s", state)
				testbed.Check(t, !w.placement.Accepts(farm.QueueCPU), "the worker would take it again at once")
				claim, err := b.Store.Claim(t.Context(), job, "wrk_other")
				testbed.Check(t, err == nil && claim.Job.Attempt == 2 && claim.Sandbox.Node == "", "Claim by another worker = %+v, %v", claim, err)
			})
		}
	}
}

// A create whose pool member is on a dead engine moves to another node, and the member leaves the pool.
func TestClaimedMemberOfADeadEngineIsDropped(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.pooling(5000, "python=1")
	m := b.member(w)
	_, err := b.Store.ClaimMember(t.Context(), store.MemberClaim{Tenant: workertest.Tenant, Image: "python", Network: farm.NetworkNone, DiskMB: m.Resources.DiskMB, Nodes: []string{"n1"}})
	workertest.Must(t, err)
	box := &farm.Sandbox{ID: m.ID, Tenant: workertest.Tenant, Node: "n1", Pooled: true, Spec: farm.SandboxSpec{Image: "python", Network: farm.NetworkNone, Resources: m.Resources, TTLSeconds: 3600}}
	job := b.Accept(farm.KindCreate, box.ID, &farm.Request{Sandbox: &box.Spec}, func(a *store.Accept) {
		a.Sandbox, a.Job.Queue = box, farm.NodeQueue("n1")
	})
	w.node.Disconnect(m.ID)
	b.Fake.CloseClientConnections()
	b.Fake.Close()
	got := b.done(w, job, farm.JobQueued)
	testbed.Check(t, got.Queue == farm.QueueCPU, "job %+v", got)
	_, err = b.Store.Member(t.Context(), m.ID)
	testbed.Check(t, errors.Is(err, store.ErrNoMember), "the member is still in the pool: %v", err)
}

// A create that is cancelled while its engine is silent ends; it does not move.
func TestCanceledStartOfASilentEngineEnds(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker()
	job, box := b.Creation(farm.KindCreate)
	b.Fake.Close()
	handled := b.begin(w, job)
	testbed.Until(t, "the sandbox is being started", func() bool { r := w.jobs.get(job.ID); return r != nil && r.start.Load() != nil })
	w.jobs.get(job.ID).requestCancel()
	workertest.Must(t, <-handled)
	got, s := b.Job(job), b.Sandbox(box)
	testbed.Check(t, got.State == farm.JobCanceled && s.State == farm.SandboxFailed, "job %s, sandbox %s", got.State, s.State)
}

// A worker that resumes after its create has moved to another node changes nothing.
func TestLateStartIsFenced(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.cfg.CreateTimeout = time.Hour
	w := b.worker()
	job, box := b.Creation(farm.KindCreate)
	b.Fake.Close()
	handled := b.begin(w, job)
	testbed.Until(t, "the sandbox is being started", func() bool { return b.Sandbox(box).State == farm.SandboxStarting })
	b.Requeue(job, store.Requeue{Attempt: 1, Elsewhere: true})
	ready := store.Move{Ref: box, To: farm.SandboxStarting, Node: "n1", Job: job.ID, Attempt: 1}
	if _, err := b.Store.MoveSandbox(t.Context(), ready); !errors.Is(err, store.ErrFenced) {
		t.Errorf("a step of an attempt that left the node = %v", err)
	}
	claim := b.Claim(job, "wrk_other")
	_, err := b.Store.MoveSandbox(t.Context(), store.Move{Ref: box, To: farm.SandboxStarting, Node: "n2", Job: job.ID, Attempt: claim.Job.Attempt})
	workertest.Must(t, err)
	w.jobs.get(job.ID).stopStart(errEngineSilent) // the worker notices only now
	err = <-handled
	testbed.Check(t, err == nil || errors.Is(err, store.ErrFenced), "the late worker's handler: %v", err)
	if got, s := b.Job(job), b.Sandbox(box); got.State != farm.JobRunning || got.Worker != "wrk_other" || s.State != farm.SandboxStarting || s.Node != "n2" {
		t.Errorf("job %s of %s, sandbox %s on %s", got.State, got.Worker, s.State, s.Node)
	}
}

// The sandboxes of an engine that stays silent are marked as lost; an engine that answers again in time keeps them.
func TestSilentEngineLosesItsSandboxes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.measured(5000, 4)
	clock := &handClock{now: time.Now()}
	w.now = clock.read
	box := b.Ready()
	waiting := b.Command(box, "echo")
	for _, up := range []bool{false, true, false} {
		workertest.Must(t, w.notePing(t.Context(), up))
		testbed.Check(t, w.placement.Accepts(farm.QueueCPU) == up, "engine up %v, gate open %v", up, !up)
		nodes, err := b.Store.ReportCapacity(t.Context(), "other", farm.Capacity{})
		testbed.Check(t, err == nil && (nodes["n1"].Capacity.MemoryMB > 0) == up, "engine up %v, room %+v, %v", up, nodes["n1"], err)
		clock.pass(w.cfg.EngineTimeout - time.Second)
	}
	workertest.Must(t, w.notePing(t.Context(), false))
	w.background.Wait()
	b.SandboxIs(box, farm.SandboxReady)
	clock.pass(time.Second)
	workertest.Must(t, w.notePing(t.Context(), false))
	w.background.Wait()
	if s, job := b.Sandbox(box), b.Job(waiting); s.State != farm.SandboxLost || !strings.Contains(s.Reason, "does not answer") || job.State != farm.JobLost {
		t.Errorf("sandbox %s (%s), its job %s", s.State, s.Reason, job.State)
	}
}

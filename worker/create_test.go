package worker

import (
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/worker/node"
	"github.com/sandfarm/sandfarm/worker/placement"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

// A restart of the engine does not fail a create: the start is retried.
func TestCreateIsRetriedWhileTheEngineIsSilent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.cfg.CreateTimeout = time.Hour
	w := b.worker()
	job, box := b.Creation(farm.KindCreate)
	b.Fake.Drop("images/json", 3)
	testbed.Must(t, w.handle(t.Context(), workertest.Task(job)))
	testbed.Check(t, b.Fake.Dropped("images/json"), "the engine was not asked again")
	b.JobIs(job, farm.JobFailed) // the fake creates no containers
	b.SandboxIs(box, farm.SandboxFailed)
}

// After its timeout the create waits in its queue for an engine.
func TestCreateIsRequeuedWhenTheEngineStaysSilent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.cfg.CreateTimeout = time.Second
	w := b.worker()
	job, box := b.Creation(farm.KindCreate)
	b.Fake.Close()
	b.done(w, job, farm.JobQueued)
	b.SandboxIs(box, farm.SandboxQueued)
}

// full is an engine that places containers itself, and has no room.
type full struct{ node.Engine }

func (full) Create(context.Context, farm.ContainerSpec) (string, error) {
	return "", farm.Errorf(farm.CodeExhausted, "0/3 nodes are available.")
}

// A create for which the engine itself has no room waits in its queue, and its caller learns why.
func TestCreateWaitsForRoomOfTheEngine(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.deps.Engine = full{b.Engine}
	w := b.measured(5000, 4)
	now := time.Now()
	w.now = func() time.Time { return now } // the pause does not end on its own
	job, box := b.Creation(farm.KindCreate)
	if got, s := b.done(w, job, farm.JobQueued), b.Sandbox(box); s.State != farm.SandboxQueued || s.Node != "" || s.Generation != 2 {
		t.Errorf("job %s, error %+v, sandbox %s on %q, generation %d", got.State, got.Error, s.State, s.Node, s.Generation)
	}
	testbed.Check(t, !w.placement.Accepts(farm.QueueCPU), "creates are not paused")
	message := b.Progress(job)
	testbed.Check(t, strings.Contains(message, "0/3 nodes are available. The sandbox waits for room."), "the progress event says %q", message)
	b.deps.Engine = b.Engine
	again := b.worker()
	testbed.Must(t, again.handle(t.Context(), workertest.Task(job)))
	b.JobIs(job, farm.JobFailed) // the fake creates no containers
}

// A start that ends while the engine creates the container leaves no container: whoever is last removes it. It used to stay until the
// reconciler came by.
func TestContainerOfAnEndedStartIsRemoved(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"cancel", "close", "requeue"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.cfg.CreateTimeout = time.Hour
			begun, release := b.Fake.HoldCreates()
			w := b.worker()
			w.node.UseIdentity(workertest.Node, "agent")
			job, box := b.Creation(farm.KindCreate)
			handled := b.begin(w, job)
			<-begun
			switch end {
			case "cancel":
				w.jobs.get(job.ID).requestCancel()
				testbed.Must(t, <-handled)
			case "close":
				closing := b.CloseJob(box)
				w.jobs.get(job.ID).requestCancel() // as Dismantle does
				testbed.Must(t, <-handled)
				testbed.Must(t, w.handle(t.Context(), workertest.Task(closing)))
			case "requeue":
				w.jobs.get(job.ID).stopStart(errEngineSilent)
				testbed.Must(t, <-handled)
			}
			s := b.Sandbox(box)
			for range placement.TurnsPerCore*runtime.NumCPU() - 1 { // all but one
				_, err := w.placement.Turn(t.Context(), farm.NewID(farm.SandboxPrefix))
				testbed.Must(t, err)
			}
			gone, cancel := context.WithCancel(t.Context())
			cancel() // whoever would wait gets an error; a turn that is free is given to every second one
			for range 50 {
				if leave, err := w.placement.Turn(gone, farm.NewID(farm.SandboxPrefix)); err == nil {
					t.Error("the engine still creates the container, and its turn was given on")
					leave()
				}
			}
			release()
			_, err := w.placement.Turn(t.Context(), farm.NewID(farm.SandboxPrefix))
			testbed.Must(t, err)
			testbed.Until(t, "the engine has created the container", func() bool { return b.Fake.Created() == 1 })
			w.background.Wait()
			if b.Fake.Has(box.ID) {
				t.Errorf("the container of a sandbox that is %s, generation %d, is left", s.State, s.Generation)
			}
			if end == "cancel" {
				b.nothingUnfinished()
			}
		})
	}
}

// A worker that stops leaves the container to the next one, which uses it.
func TestContainerOfAStoppedWorkerStays(t *testing.T) {
	t.Parallel()
	b := setup(t)
	begun, release := b.Fake.HoldCreates()
	w := b.worker()
	w.node.UseIdentity(workertest.Node, "agent")
	job, box := b.Creation(farm.KindCreate)
	handled := b.begin(w, job)
	<-begun
	w.stop(node.ErrStopping)
	testbed.Must(t, <-handled)
	w.background.Wait() // it does not wait for the engine
	release()
	testbed.Until(t, "the engine has created the container", func() bool { return b.Fake.Created() == 1 })
	b.SandboxIs(box, farm.SandboxStarting)
	if got := b.JobIs(job, farm.JobRunning); got.GracefulRequeues != 1 || !b.Fake.Has(box.ID) {
		t.Errorf("%d requeues do not count as crashes, container exists: %v", got.GracefulRequeues, b.Fake.Has(box.ID))
	}
}

// ofGeneration adds the running container that was made for a generation of a sandbox, under the sandbox's name.
func (b *bundle) ofGeneration(box farm.Ref, generation int) {
	b.T.Helper()
	s := b.Sandbox(box)
	s.Generation, s.ExpiresAt = generation, time.Now().Add(time.Hour)
	b.label(s)
}

// The engine has the container of a later generation than the record of a create: Redis was restored from a snapshot that is older than the
// container. The worker of that create is fenced. It neither takes the container, nor removes it, nor fails the sandbox. The reconciler
// gives the container to the sandbox, and the next attempt completes the create.
func TestCreateIsFencedByTheContainerOfALaterGeneration(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Fake.Create()
	w := b.worker()
	w.node.UseIdentity(workertest.Node, "agent")
	job, box := b.Creation(farm.KindCreate)
	b.ofGeneration(box, 2)
	err := w.handle(t.Context(), workertest.Task(job))
	testbed.Check(t, errors.Is(err, store.ErrFenced), "the create ended with %v, want ErrFenced", err)
	if j, s := b.Job(job), b.Sandbox(box); j.State != farm.JobRunning || s.State != farm.SandboxStarting || s.Container != "" || !b.Fake.Has(box.ID) || b.Fake.Created() != 0 {
		t.Fatalf("job %s, sandbox %+v, container exists: %v, %d were created", j.State, s, b.Fake.Has(box.ID), b.Fake.Created())
	}
	testbed.Must(t, w.reconciler.Run(t.Context()))
	if s := b.Sandbox(box); s.State != farm.SandboxReady || s.Generation != 2 || s.Container != "test-"+box.ID || !b.Fake.Has(box.ID) {
		t.Fatalf("after the reconciler: sandbox %+v, container exists: %v", s, b.Fake.Has(box.ID))
	}
	testbed.Must(t, b.Store.RemoveWorker(t.Context(), w.id))
	next := b.worker()
	if j, s := b.done(next, job, farm.JobCompleted), b.Sandbox(box); s.State != farm.SandboxReady || s.Generation != 2 || !b.Fake.Has(box.ID) {
		t.Errorf("after the next attempt: job %s, error %+v, sandbox %+v, container exists: %v", j.State, j.Error, s, b.Fake.Has(box.ID))
	}
}

// What the reconciler does with a container of another generation than the record, for each state of the record.
func TestReconcileComparesGenerations(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		states     []farm.SandboxState // of the record
		moved      bool                // the record is of generation 2, since its start left the node and came back
		container  int                 // its generation
		state      farm.SandboxState
		generation int
		kept       bool
	}{
		"newer, starting": {states: []farm.SandboxState{farm.SandboxStarting}, container: 2, state: farm.SandboxReady, generation: 2, kept: true},
		"newer, ready":    {states: []farm.SandboxState{farm.SandboxStarting, farm.SandboxReady}, container: 3, state: farm.SandboxReady, generation: 3, kept: true},
		"newer, lost":     {states: []farm.SandboxState{farm.SandboxStarting, farm.SandboxLost}, container: 2, state: farm.SandboxLost, generation: 1},
		"same":            {states: []farm.SandboxState{farm.SandboxStarting, farm.SandboxReady}, container: 1, state: farm.SandboxReady, generation: 1, kept: true},
		"earlier":         {states: []farm.SandboxState{farm.SandboxStarting}, container: 1, state: farm.SandboxStarting, generation: 2, moved: true},
		"earlier, queued": {container: 1, state: farm.SandboxQueued, generation: 2, moved: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			w := b.worker()
			job, box := b.Creation(farm.KindCreate)
			claim := b.Claim(job, w.id)
			if c.moved {
				b.Move(box, farm.SandboxStarting)
				b.Requeue(job, store.Requeue{Attempt: claim.Job.Attempt, Elsewhere: true})
				if len(c.states) > 0 {
					b.Claim(job, w.id)
				}
			}
			b.Move(box, c.states...)
			b.ofGeneration(box, c.container)
			testbed.Must(t, w.reconciler.Run(t.Context()))
			s := b.Sandbox(box)
			if s.State != c.state || max(s.Generation, 1) != c.generation || b.Fake.Has(box.ID) != c.kept {
				t.Errorf("sandbox %s of generation %d, container exists: %v; want %s, %d, %v", s.State, s.Generation, b.Fake.Has(box.ID), c.state, c.generation, c.kept)
			}
		})
	}
}

// A create that does not fit is requeued, and starts when there is room.
func TestCreateWithoutRoomWaits(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.cfg.MemoryOvercommit, b.cfg.CPUOvercommit = 1, 4
	w := b.measured(3000, 4)
	now := time.Now()
	w.now = func() time.Time { return now } // pauses do not end on their own
	first, box := b.Sized(2048, 1)
	claim := b.Claim(first, w.id)
	ok, err := w.placement.Reserve(t.Context(), claim)
	testbed.Require(t, err == nil && ok, "place = %v, %v", ok, err)
	b.Reserved(farm.Capacity{MemoryMB: 2048, CPUs: 1})
	second, other := b.Sized(2048, 1)
	job, s := b.done(w, second, farm.JobQueued), b.Sandbox(other)
	testbed.Check(t, job.Attempt-job.GracefulRequeues == 0 && s.State == farm.SandboxQueued && s.Node == "", "job %+v, sandbox %+v", job, s)
	b.Reserved(farm.Capacity{MemoryMB: 2048, CPUs: 1})
	if w.placement.Accepts(farm.QueueCPU) || !w.placement.Accepts(farm.QueueControl) || !w.placement.Accepts(farm.NodeQueue("n1")) {
		t.Error("the gate of creates is open, or another gate is closed")
	}
	// The first sandbox ends before it is ready: its reservation is free for waiting creates at once.
	err = w.abandon(t.Context(), claimedJob(claim), workertest.ErrTest)
	testbed.Check(t, err != nil, "abandoning returned no error")
	s = b.Sandbox(box)
	testbed.Check(t, s.State == farm.SandboxFailed || s.State == farm.SandboxQueued, "sandbox is %s", s.State)
	b.Reserved(farm.Capacity{})
	testbed.Check(t, w.placement.Accepts(farm.QueueCPU), "the gate stays closed")
	claim = b.Claim(second, w.id)
	ok, err = w.placement.Reserve(t.Context(), claim)
	testbed.Check(t, err == nil && ok, "place = %v, %v", ok, err)
}

// A host whose sandboxes share its memory many times over still takes none that is larger than the host.
func TestCreateLargerThanTheHostIsLeftToOthers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.cfg.MemoryReserveMB, b.cfg.MemoryOvercommit = 1000, 16
	w := b.measured(4000, 4)
	got := w.placement.Status()
	testbed.Check(t, got.LargestMB == 3000 && got.Room.Capacity.MemoryMB == 48_000, "status %+v", got)
	for _, c := range []struct {
		memory int
		fits   bool
	}{{2999, true}, {3000, true}, {3001, false}} {
		job, _ := b.Sized(c.memory, 1)
		claim := b.Claim(job, w.id)
		ok, err := w.placement.Reserve(t.Context(), claim)
		testbed.Check(t, err == nil && ok == c.fits, "a sandbox of %d MiB: reserved %v, %v", c.memory, ok, err)
	}
	b.Reserved(farm.Capacity{MemoryMB: 5999, CPUs: 2})
}

// A create of more cores than the host has gets those of the host, and reserves as many: four of 64 cores took all that 2 cores could give, and no
// other create started.
func TestCreateReservesTheCoresThatItGets(t *testing.T) {
	t.Parallel()
	const cores, memory = 4, 64
	b := setup(t)
	b.cfg.CPUOvercommit = 16
	w := b.measured(16_000, cores)
	reserved := farm.Capacity{}
	for _, c := range []struct{ asks, gets float64 }{{cores - 1, cores - 1}, {cores, cores}, {cores + 1, cores}, {16 * cores, cores}} {
		job, _ := b.Sized(memory, c.asks)
		ok, err := w.placement.Reserve(t.Context(), b.Claim(job, w.id))
		testbed.Require(t, ok && err == nil, "%g cores: reserved %v, %v", c.asks, ok, err)
		reserved = reserved.Plus(farm.Capacity{MemoryMB: memory, CPUs: c.gets})
		b.Reserved(reserved)
	}
}

// So does a container whose reservation was lost.
func TestReconciledReservationsHaveTheCoresThatTheyGet(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.measured(16_000, 4)
	_, box := b.Sized(64, 64)
	testbed.Must(t, w.placement.ReconcileReservations(t.Context(), []*farm.Sandbox{b.Sandbox(box)}, map[string]bool{box.ID: true}))
	b.Reserved(farm.Capacity{MemoryMB: 64, CPUs: 4})
}

func TestCanceledCreateWithoutRoomEnds(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.measured(1000, 4)
	job, box := b.Sized(2048, 1)
	claim := b.Claim(job, w.id)
	_, _, err := b.Store.Cancel(t.Context(), job, nil)
	testbed.Must(t, err)
	testbed.Must(t, w.requeueUnplaced(t.Context(), claimedJob(claim)))
	got, s := b.Job(job), b.Sandbox(box)
	testbed.Check(t, got.State == farm.JobCanceled && s.State == farm.SandboxClosed, "job %s, sandbox %s", got.State, s.State)
}

func TestClosedAndLostSandboxesEndTheirReservations(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.measured(5000, 4)
	closed, lost := b.Ready(), b.Ready()
	for _, s := range []farm.Ref{closed, lost} {
		_, _, err := b.Store.Reserve(t.Context(), store.ReserveRequest{Node: "n1", Capacity: farm.Capacity{MemoryMB: 1 << 20, CPUs: 64}, Sandbox: s, Want: farm.Capacity{MemoryMB: 100, CPUs: 1}})
		testbed.Must(t, err)
	}
	b.Reserved(farm.Capacity{MemoryMB: 200, CPUs: 2})
	testbed.Must(t, w.handle(t.Context(), workertest.Task(b.CloseJob(closed))))
	b.Reserved(farm.Capacity{MemoryMB: 100, CPUs: 1})
	w.lifecycle.Lose(t.Context(), b.Sandbox(lost), "", "it is a test")
	b.Reserved(farm.Capacity{})
	b.nothingUnfinished()
}

// Containers without a reservation get one; reservations without a sandbox end, but not while the sandbox may still start.
func TestReconcileCorrectsReservations(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.measured(5000, 4)
	b.Fake.Put(b.Ready().ID, true) // without a size, as before reservations existed
	job, sized := b.Sized(300, 0.5)
	claim := b.Claim(job, w.id)
	b.Move(sized, farm.SandboxStarting, farm.SandboxReady)
	_, err := b.Store.Finish(t.Context(), store.Finish{Ref: job, Attempt: claim.Job.Attempt, State: farm.JobCompleted})
	testbed.Must(t, err)
	b.Fake.Put(sized.ID, true)
	_, waiting := b.Sized(200, 1)
	gone := farm.Ref{Tenant: workertest.Tenant, ID: farm.NewID(farm.SandboxPrefix)}
	for _, s := range []farm.Ref{waiting, gone} {
		_, _, err := b.Store.Reserve(t.Context(), store.ReserveRequest{Node: "n1", Capacity: farm.Capacity{MemoryMB: 1 << 20, CPUs: 64}, Sandbox: s, Want: farm.Capacity{MemoryMB: 10, CPUs: 0.1}})
		testbed.Must(t, err)
	}
	testbed.Must(t, w.reconciler.Run(t.Context()))
	b.Reserved(farm.Capacity{MemoryMB: 320, CPUs: 0.7})
	w.now = func() time.Time { return time.Now().Add(3 * time.Minute) }
	testbed.Must(t, w.reconciler.Run(t.Context()))
	b.Reserved(farm.Capacity{MemoryMB: 310, CPUs: 0.6}) // the ended sandboxes have none; the waiting one may still start here
}

// A create that claimed a member completes as soon as the member has its limits and the engine has its owner.
func TestClaimedMemberBecomesTheSandbox(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.pooling(64<<10, "python=1")
	m := b.member(w)
	job, box := b.Claimed(m, nil)
	testbed.Must(t, w.handle(t.Context(), workertest.Task(job)))
	if s, j := b.Sandbox(box), b.Job(job); s.State != farm.SandboxReady || s.ID != m.ID || s.Container != m.Container || j.State != farm.JobCompleted {
		t.Fatalf("sandbox %+v, job %+v", s, j)
	}
	var kept farm.Sandbox
	note := b.Fake.Note(box.ID)
	err := json.Unmarshal([]byte(note[node.LabelRecord]), &kept)
	testbed.Check(t, err == nil && kept.ID == box.ID && note[engine.LabelTenant] == workertest.Tenant, "note %v", note)
	testbed.Check(t, len(b.Fake.Updates()) == 0, "the default limits were set again: %v", b.Fake.Updates())
	b.Reserved(farm.Capacity{MemoryMB: 2048, CPUs: 2})
	testbed.Must(t, w.handle(t.Context(), workertest.Task(b.CloseJob(box))))
	_, err = b.Store.Member(t.Context(), m.ID)
	testbed.Check(t, err != nil && b.Fake.Note(box.ID) == nil && !b.Fake.Has(m.ID), "left behind: member %v, note %v", err, b.Fake.Note(box.ID))
	b.Reserved(farm.Capacity{})
}

func TestClaimSetsTheLimits(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.pooling(64<<10, "python=1")
	job, box := b.Claimed(b.member(w), func(s *farm.Sandbox) {
		s.Spec.Resources = farm.Resources{MemoryMB: 4096, CPUs: 0.5, PIDs: 99, DiskMB: 1024}
	})
	testbed.Must(t, w.handle(t.Context(), workertest.Task(job)))
	b.SandboxIs(box, farm.SandboxReady)
	for _, part := range []string{`"Memory":4294967296`, `"MemorySwap":4294967296`, `"NanoCpus":500000000`, `"PidsLimit":99`} {
		if len(b.Fake.Updates()) != 1 || !strings.Contains(b.Fake.Updates()[0], part) {
			t.Errorf("changes of limits: %v; want %s", b.Fake.Updates(), part)
		}
	}
	b.Reserved(farm.Capacity{MemoryMB: 4096, CPUs: 0.5})
}

// A member that cannot grow on its node is removed, and the create waits in the queue of all nodes.
func TestMemberWithoutRoomToGrowRequeuesItsCreate(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.pooling(3000+512, "python=1")
	m := b.member(w)
	job, box := b.Claimed(m, func(s *farm.Sandbox) { s.Spec.Resources.MemoryMB = 8000 })
	if j, s := b.done(w, job, farm.JobQueued), b.Sandbox(box); j.Queue != farm.QueueCPU || s.State != farm.SandboxQueued || s.Node != "" || j.Attempt != j.GracefulRequeues {
		t.Errorf("job %+v, sandbox %+v", j, s)
	}
	testbed.Check(t, !b.Fake.Has(m.ID), "the member's container still exists")
	b.Reserved(farm.Capacity{})
}

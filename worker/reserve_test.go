package worker

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/worker/node"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

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

func TestCanceledCreateWithoutRoomEnds(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.measured(1000, 4)
	job, box := b.Sized(2048, 1)
	claim := b.Claim(job, w.id)
	_, _, err := b.Store.Cancel(t.Context(), job, nil)
	testbed.Must(t, err)
	workertest.Must(t, w.requeueUnplaced(t.Context(), claimedJob(claim)))
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
		workertest.Must(t, err)
	}
	b.Reserved(farm.Capacity{MemoryMB: 200, CPUs: 2})
	workertest.Must(t, w.handle(t.Context(), workertest.Task(b.CloseJob(closed))))
	b.Reserved(farm.Capacity{MemoryMB: 100, CPUs: 1})
	w.lifecycle.Lose(t.Context(), b.Sandbox(lost), "", "it is a test")
	b.Reserved(farm.Capacity{})
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
	workertest.Must(t, err)
	b.Fake.Put(sized.ID, true)
	_, waiting := b.Sized(200, 1)
	gone := farm.Ref{Tenant: workertest.Tenant, ID: farm.NewID(farm.SandboxPrefix)}
	for _, s := range []farm.Ref{waiting, gone} {
		_, _, err := b.Store.Reserve(t.Context(), store.ReserveRequest{Node: "n1", Capacity: farm.Capacity{MemoryMB: 1 << 20, CPUs: 64}, Sandbox: s, Want: farm.Capacity{MemoryMB: 10, CPUs: 0.1}})
		workertest.Must(t, err)
	}
	workertest.Must(t, w.reconciler.Run(t.Context()))
	b.Reserved(farm.Capacity{MemoryMB: 320, CPUs: 0.7})
	w.now = func() time.Time { return time.Now().Add(3 * time.Minute) }
	workertest.Must(t, w.reconciler.Run(t.Context()))
	b.Reserved(farm.Capacity{MemoryMB: 310, CPUs: 0.6}) // the ended sandboxes have none; the waiting one may still start here
}

// A create that claimed a member completes as soon as the member has its limits and the engine has its owner.
func TestClaimedMemberBecomesTheSandbox(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.pooling(64<<10, "python=1")
	m := b.member(w)
	job, box := b.Claimed(m, nil)
	workertest.Must(t, w.handle(t.Context(), workertest.Task(job)))
	if s, j := b.Sandbox(box), b.Job(job); s.State != farm.SandboxReady || s.ID != m.ID || s.Container != m.Container || j.State != farm.JobCompleted {
		t.Fatalf("sandbox %+v, job %+v", s, j)
	}
	var kept farm.Sandbox
	note := b.Fake.Note(box.ID)
	err := json.Unmarshal([]byte(note[node.LabelRecord]), &kept)
	testbed.Check(t, err == nil && kept.ID == box.ID && note[engine.LabelTenant] == workertest.Tenant, "note %v", note)
	testbed.Check(t, len(b.Fake.Updates()) == 0, "the default limits were set again: %v", b.Fake.Updates())
	b.Reserved(farm.Capacity{MemoryMB: 2048, CPUs: 2})
	workertest.Must(t, w.handle(t.Context(), workertest.Task(b.CloseJob(box))))
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
	workertest.Must(t, w.handle(t.Context(), workertest.Task(job)))
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

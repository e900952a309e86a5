package worker

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/worker/node"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

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
	if err := json.Unmarshal([]byte(note[node.LabelRecord]), &kept); err != nil || kept.ID != box.ID || note[engine.LabelTenant] != workertest.Tenant {
		t.Errorf("note %v", note)
	}
	if len(b.Fake.Updates()) != 0 {
		t.Errorf("the default limits were set again: %v", b.Fake.Updates())
	}
	b.Reserved(farm.Capacity{MemoryMB: 2048, CPUs: 2})
	workertest.Must(t, w.handle(t.Context(), workertest.Task(b.CloseJob(box))))
	if _, err := b.Store.Member(t.Context(), m.ID); err == nil || b.Fake.Note(box.ID) != nil || b.Fake.Has(m.ID) {
		t.Errorf("left behind: member %v, note %v", err, b.Fake.Note(box.ID))
	}
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
	if s := b.Sandbox(box); s.State != farm.SandboxReady {
		t.Fatalf("sandbox %+v", s)
	}
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
	workertest.Must(t, w.handle(t.Context(), workertest.Task(job)))
	if j, s := b.Job(job), b.Sandbox(box); j.State != farm.JobQueued || j.Queue != farm.QueueCPU || s.State != farm.SandboxQueued || s.Node != "" || j.Attempt != j.GracefulRequeues {
		t.Errorf("job %+v, sandbox %+v", j, s)
	}
	if b.Fake.Has(m.ID) {
		t.Error("the member's container still exists")
	}
	b.Reserved(farm.Capacity{})
}

package placement

import (
	"testing"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

// A drained node takes no creates, has no pool, and looks to other nodes as if it had no room. What is on it goes on.
func TestDrainedNodeTakesNothingNew(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.pooling(64<<10, "python=2")
	b.member(p)
	testbed.Check(t, !p.Drain(false) && p.Drain(true) && !p.Drain(true), "Drain does not say what changed")
	testbed.Check(t, !p.Accepts(farm.QueueCPU) && !p.Accepts(farm.QueueGPU), "the gate of creates is open")
	testbed.Check(t, p.Accepts(farm.NodeQueue(p.node.ID())) && p.Accepts(farm.QueueControl), "the gate is closed to jobs of sandboxes that exist")
	workertest.Must(t, p.maintain(t.Context()))
	workertest.Must(t, p.RefreshCapacity(t.Context()))
	p.Wait()
	testbed.Diff(t, "members of the pool are left", 0, b.IdleMembers())
	nodes, err := b.Store.ReportCapacity(t.Context(), "n2", farm.Capacity{MemoryMB: 1})
	got := nodes[p.node.ID()]
	testbed.Check(t, err == nil && got.Capacity == (farm.Capacity{}), "other nodes see a capacity of %+v, %v", got.Capacity, err)
	s := p.Status()
	testbed.Check(t, s.Drained && s.Room.Capacity == (farm.Capacity{}) && len(s.Pool) == 1 && s.Pool[0].Target == 0, "status = %+v", s)
	job, _ := b.Sized(2048, 1) // it was taken off the queue just before
	claim := b.Claim(job, p.deps.WorkerID)
	ok, err := p.Reserve(t.Context(), claim)
	testbed.Check(t, !ok && err == nil, "a create gets room: %v, %v", ok, err)
	testbed.Check(t, p.Drain(false), "Drain does not say that the drain has ended")
	workertest.Must(t, p.RefreshCapacity(t.Context()))
	testbed.Check(t, p.Accepts(farm.QueueCPU), "the gate stays closed after the drain")
	ok, err = p.Reserve(t.Context(), claim)
	testbed.Check(t, ok && err == nil, "a create gets no room after the drain: %v, %v", ok, err)
}

// A hibernated sandbox resumes on its node although that is drained: it can be nowhere else.
func TestDrainedNodeResumesItsSandboxes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.cfg.MemoryOvercommit = 1
	p := b.measured(8192, 4)
	p.Drain(true)
	workertest.Must(t, p.RefreshCapacity(t.Context()))
	box := b.Ready()
	b.Move(box, farm.SandboxHibernated)
	claim := b.Claim(b.Accept(farm.KindResume, box.ID, &farm.Request{}, nil), p.deps.WorkerID)
	ok, err := p.Reserve(t.Context(), claim)
	testbed.Check(t, ok && err == nil, "Reserve = %v, %v", ok, err)
}

// A resume without room is tried again and again: it must not pause creates, which may be smaller.
func TestResumeWithoutRoomPausesNoCreates(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.cfg.MemoryOvercommit = 1
	p := b.measured(4096, 4)
	box := b.Ready()
	b.Move(box, farm.SandboxHibernated)
	claim := b.Claim(b.Accept(farm.KindResume, box.ID, &farm.Request{}, nil), p.deps.WorkerID)
	for _, memory := range []int{4096, 5000} { // the whole node; more than it has
		claim.Sandbox.Spec.Resources.MemoryMB = memory
		job, _ := b.Sized(1024, 1)
		reserve(t, b, p, job)
		ok, err := p.Reserve(t.Context(), claim)
		testbed.Require(t, !ok && err == nil, "Reserve = %v, %v: the resume has room", ok, err)
		testbed.Check(t, p.gate.open(), "a resume of %d MiB has paused creates", memory)
	}
}

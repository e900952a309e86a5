package placement

import (
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/worker/node"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

func TestCapacityFollowsTheSettings(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.cfg.MemoryReserveMB, b.cfg.MemoryOvercommit, b.cfg.CPUOvercommit = 1000, 1.5, 3
	got, want := b.measured(5000, 2).gate.size(), (farm.Capacity{MemoryMB: 6000, CPUs: 6})
	testbed.Check(t, got == want, "capacity %+v, want %+v", got, want)
	b = setup(t) // by default a small machine can have many idle sandboxes
	got, want = b.measured(5000, 2).gate.size(), (farm.Capacity{MemoryMB: 80_000, CPUs: 256})
	testbed.Check(t, got == want, "capacity by default %+v, want %+v", got, want)
}

// Of an engine that places containers itself only the capacity is asked.
func TestEngineWithoutHost(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.cfg.SandboxCgroup = CgroupAuto
	b.Fake.SetHost(5000, 2)
	p := b.hostless()
	testbed.Must(t, p.Measure(t.Context()))
	testbed.Must(t, p.FindGPUs(t.Context()))
	if queues, cpu := p.Queues(); p.gate.machine() != (farm.Capacity{MemoryMB: 5000, CPUs: 2}) || len(queues) > 0 || !cpu {
		t.Errorf("host %+v, queues %v", p.gate.machine(), queues)
	}
}

// hostless makes a placer of an engine that places containers itself.
func (b *bundle) hostless() *Placer {
	b.T.Helper()
	deps := b.placer().deps
	deps.Engine = struct{ node.Engine }{b.Engine}
	p, err := New(b.cfg, deps)
	testbed.Must(b.T, err)
	return p
}

// An engine that places containers itself gives out its GPUs, too: creates for the models of the settings go there, without leases. One for which it
// has no devices pauses those of its queue, and no others.
func TestGPUsOfAnEngineWithoutHost(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Fake.SetHost(1<<20, 64)
	b.cfg.GPUs, b.cfg.GPUTakesCPU = []string{"model=NVIDIA-A100-SXM4-80GB", "count=2", "model=Tesla-T4"}, true
	models, err := GPUModels(b.cfg.GPUs)
	testbed.Must(t, err)
	testbed.Diff(t, "models", []string{"NVIDIA-A100-SXM4-80GB", "Tesla-T4"}, models)
	p := b.hostless()
	now := time.Now()
	p.gpus.now, p.gate.now = func() time.Time { return now }, func() time.Time { return now }
	testbed.Must(t, errors.Join(p.Measure(t.Context()), p.FindGPUs(t.Context())))
	testbed.Diff(t, "devices", []farm.GPUDevice{{ID: "0", Model: "a100-sxm4-80gb"}, {ID: "1", Model: "a100-sxm4-80gb"}, {ID: "2", Model: "t4"}}, p.Status().GPUs)
	want := farm.GPU{Count: 2, Model: "a100"}
	for range 2 { // the second of the same devices, too: whether they are free is not known here
		claim := b.wanting(p, want)
		testbed.Check(t, p.Accepts("gpu-a100"), "the queue is closed")
		ok, err := p.Reserve(t.Context(), claim)
		if !ok || err != nil || b.leased(claim) != nil {
			t.Errorf("reserve = %v, %v, leased %v", ok, err, b.leased(claim))
		}
		var spec farm.ContainerSpec
		testbed.Must(t, errors.Join(p.AddDevices(claim.Sandbox, &spec), p.CheckDevices(t.Context(), claim.Sandbox), p.ReconcileGPUs(t.Context()), p.RefreshGPUs(t.Context())))
		testbed.Diff(t, "devices of the container", farm.ContainerSpec{GPU: &want}, spec)
		p.ReleaseGPUs(t.Context(), claim.Sandbox)
	}
	p.PauseCreates("gpu-a100")
	if p.Accepts("gpu-a100") || !p.Accepts("gpu-t4") || !p.Accepts(farm.QueueCPU) {
		t.Error("want the queue of the model to be paused, and no other")
	}
	p.PauseCreates(farm.QueueCPU)
	testbed.Check(t, !p.Accepts(farm.QueueCPU), "creates are not paused")
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
	fresh := func(nodes map[string]store.NodeCapacity) *gate {
		return &gate{node: "a", smallest: farm.Capacity{MemoryMB: 64, CPUs: 0.1}, now: func() time.Time { return now }, wake: func() { wakes <- struct{}{} }, nodes: nodes}
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
		testbed.Diff(t, fmt.Sprintf("%s: open", name), c.open, fresh(c.nodes).open())
	}

	r := fresh(of(600, 0)) // much fuller: it takes a create only now and then
	for i := range 3 {
		testbed.Check(t, r.open() && !r.open(), "round %d: not one create is taken by the fuller node", i)
		<-wakes
		now = now.Add(turnEvery)
	}

	r = fresh(of(0, 0))
	for _, pause := range []time.Duration{firstPause, 2 * firstPause, 4 * firstPause} {
		r.pauseCreates()
		now = now.Add(pause - time.Millisecond)
		testbed.Check(t, !r.open(), "open within the pause of %v", pause)
		if now = now.Add(time.Millisecond); !r.open() {
			t.Errorf("closed after the pause of %v", pause)
		}
		<-wakes
	}
	for range 20 {
		r.pauseCreates()
	}
	if now = now.Add(maxPause); !r.open() {
		t.Error("the pauses grow without a limit")
	}
	r.pauseCreates()
	r.update(of(100, 0))
	testbed.Check(t, !r.open(), "less room ended the pause")
	r.update(of(50, 0))
	testbed.Check(t, r.open(), "more room did not end the pause")
}

// A drained node takes no creates, has no pool, and looks to other nodes as if it had no room. What is on it goes on.
func TestDrainedNodeTakesNothingNew(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.pooling(64<<10, "python=2")
	b.member(p)
	testbed.Check(t, !p.Drain(false) && p.Drain(true) && !p.Drain(true), "Drain does not say what changed")
	testbed.Check(t, !p.Accepts(farm.QueueCPU) && !p.Accepts(farm.QueueGPU), "the gate of creates is open")
	testbed.Check(t, p.Accepts(farm.NodeQueue(p.node.ID())) && p.Accepts(farm.QueueControl), "the gate is closed to jobs of sandboxes that exist")
	testbed.Must(t, p.maintain(t.Context()))
	testbed.Must(t, p.RefreshCapacity(t.Context()))
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
	testbed.Must(t, p.RefreshCapacity(t.Context()))
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
	testbed.Must(t, p.RefreshCapacity(t.Context()))
	box := b.Ready()
	b.Move(box, farm.SandboxHibernated)
	claim := b.Claim(b.Accept(farm.KindResume, box.ID, &farm.Request{}, nil), p.deps.WorkerID)
	ok, err := p.Reserve(t.Context(), claim)
	testbed.Check(t, ok && err == nil, "Reserve = %v, %v", ok, err)
}

// A resume that waits for its turn has no container yet, and keeps what it has reserved.
func TestResumeThatWaitsKeepsItsReservation(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.measured(8192, 4)
	box := b.Ready()
	b.Move(box, farm.SandboxHibernated)
	claim := b.Claim(b.Accept(farm.KindResume, box.ID, &farm.Request{}, nil), p.deps.WorkerID)
	claim.Sandbox.Spec.Resources = farm.Resources{MemoryMB: 1024, CPUs: 1}
	ok, err := p.Reserve(t.Context(), claim)
	testbed.Require(t, ok && err == nil, "Reserve = %v, %v", ok, err)
	p.deps.Now = workertest.In(2 * reservationGrace)
	testbed.Must(t, p.ReconcileReservations(t.Context(), nil, nil))
	b.Reserved(farm.Capacity{MemoryMB: 1024, CPUs: 1})
	_, err = b.Store.Finish(t.Context(), store.Finish{Ref: claim.Job.Ref(), Attempt: claim.Job.Attempt, State: farm.JobFailed})
	testbed.Must(t, err)
	testbed.Must(t, p.ReconcileReservations(t.Context(), nil, nil))
	b.Reserved(farm.Capacity{})
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

// A create whose runtime the node lacks reserves nothing here, whatever is free, and so goes back to the queue of all nodes.
func TestSandboxOfAnotherRuntimeIsLeftToOtherNodes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.measured(64<<10, 8)
	p.node.UseRuntimes("runc", "runsc")
	for runtime, want := range map[string]bool{"": true, "runc": true, "runsc": true, "kata": false} {
		job, _ := b.Sized(512, 1)
		claim := b.Claim(job, p.deps.WorkerID)
		claim.Sandbox.Spec.Runtime = runtime
		ok, err := p.Reserve(t.Context(), claim)
		testbed.Check(t, ok == want && err == nil, "Reserve for the runtime %q = %v, %v, want %v", runtime, ok, err, want)
	}
	b.Reserved(farm.Capacity{MemoryMB: 3 * 512, CPUs: 3})
}

// An automatic pool is shared between the runtimes, and the default has what is left over.
func TestAutomaticPoolIsSharedBetweenRuntimes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.placer()
	standard, runsc, kata := poolKey{image: autoImage}, poolKey{autoImage, "runsc"}, poolKey{autoImage, "kata"}
	for _, c := range []struct {
		runtimes []string
		size     int
		want     map[poolKey]int
	}{
		{nil, 3, map[poolKey]int{standard: 3}},
		{[]string{"runc"}, 3, map[poolKey]int{standard: 3}},
		{[]string{"runc", "runsc"}, 3, map[poolKey]int{standard: 2, runsc: 1}},
		{[]string{"runc", "runsc"}, 1, map[poolKey]int{standard: 1, runsc: 0}},
		{[]string{"runc", "runsc", "kata"}, 8, map[poolKey]int{standard: 4, runsc: 2, kata: 2}},
		{[]string{"runc", "runsc"}, 0, map[poolKey]int{standard: 0, runsc: 0}},
	} {
		p.node.UseRuntimes(c.runtimes...)
		got := p.autoTargets(c.size)
		testbed.Check(t, maps.Equal(got, c.want), "%d members for %v: %v, want %v", c.size, c.runtimes, got, c.want)
	}
}

// worker.pool may name a runtime that sandboxes may have. The default by its name is the default.
func TestPoolOfRuntimes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.pooling(64<<10, "python=2", "node@runc=1", "python@runsc=3")
	p.node.UseRuntimes("runc", "runsc")
	testbed.Must(t, p.PreparePool())
	want := map[poolKey]int{{image: "python"}: 2, {image: "node"}: 1, {"python", "runsc"}: 3}
	testbed.Check(t, maps.Equal(p.pool.targets, want), "targets %v, want %v", p.pool.targets, want)
	p.node.UseRuntimes("runc")
	err := p.PreparePool()
	testbed.Check(t, err != nil, "a pool of a runtime that the node lacks is accepted")
}

// A member of one runtime serves no sandbox that must have another: the member is removed, and the sandbox starts cold.
func TestMemberOfAnotherRuntimeIsUnfit(t *testing.T) {
	t.Parallel()
	for runtime, want := range map[string]bool{"": true, "runc": true, "runsc": false} {
		b := setup(t)
		p := b.pooling(64<<10, "python=1")
		p.node.UseRuntimes("runc", "runsc")
		m := b.member(p)
		_, box := b.Claimed(m, func(s *farm.Sandbox) { s.Spec.Runtime = runtime })
		_, ok, err := p.AssignMember(t.Context(), b.Sandbox(box))
		testbed.Check(t, ok == want && err == nil, "a member with the default runtime for %q: %v, %v, want %v", runtime, ok, err, want)
	}
}

// Members of each pool key are counted by themselves.
func TestMembersOfRuntimesAreCountedApart(t *testing.T) {
	t.Parallel()
	p := newPool(map[poolKey]int{{image: "python"}: 1, {"python", "runsc"}: 2})
	p.update([]store.Member{{Image: "python", State: store.MemberIdle}, {Image: "python", Runtime: "runsc", State: store.MemberIdle}})
	stock := p.stock()
	if len(stock) != 2 || stock[0] != (farm.PoolStock{Image: "python", Target: 1, Ready: 1}) || stock[1] != (farm.PoolStock{Image: "python", Runtime: "runsc", Target: 2, Ready: 1}) {
		t.Errorf("stock %+v", stock)
	}
	got := p.missing(p.idle, time.Now(), false)
	testbed.Check(t, len(got) == 1 && got[0] == (poolKey{"python", "runsc"}), "missing %v", got)
}

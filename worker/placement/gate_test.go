package placement

import (
	"errors"
	"fmt"
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
	workertest.Must(t, p.Measure(t.Context()))
	workertest.Must(t, p.FindGPUs(t.Context()))
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
	workertest.Must(b.T, err)
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
	workertest.Must(t, err)
	testbed.Diff(t, "models", []string{"NVIDIA-A100-SXM4-80GB", "Tesla-T4"}, models)
	p := b.hostless()
	now := time.Now()
	p.gpus.now, p.gate.now = func() time.Time { return now }, func() time.Time { return now }
	workertest.Must(t, errors.Join(p.Measure(t.Context()), p.FindGPUs(t.Context())))
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
		workertest.Must(t, errors.Join(p.AddDevices(claim.Sandbox, &spec), p.CheckDevices(t.Context(), claim.Sandbox), p.ReconcileGPUs(t.Context()), p.RefreshGPUs(t.Context())))
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

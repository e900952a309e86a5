package placement

import (
	"slices"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

// withGPUs gives a placer devices, and opens them for leases.
func (b *bundle) withGPUs(p *Placer, models ...string) {
	b.T.Helper()
	devices := make([]farm.GPUDevice, len(models))
	for i, model := range models {
		devices[i] = farm.GPUDevice{ID: string(rune('0' + i)), Model: model}
	}
	p.gpus.set(devices)
	p.gate.node, p.gate.capacity = workertest.Node, farm.Capacity{MemoryMB: 1 << 20, CPUs: 64}
	workertest.Must(b.T, p.ReconcileGPUs(b.T.Context()))
}

// wanting accepts the create of a sandbox with GPUs, and claims it for a worker.
func (b *bundle) wanting(p *Placer, gpu farm.GPU) *store.Claim {
	b.T.Helper()
	box := &farm.Sandbox{ID: farm.NewID(farm.SandboxPrefix), Tenant: workertest.Tenant, Spec: farm.SandboxSpec{Image: "python", TTLSeconds: 3600, GPU: &gpu}}
	job := &farm.Job{ID: farm.NewID(farm.JobPrefix), Tenant: workertest.Tenant, Kind: farm.KindCreate, SandboxID: box.ID, Queue: gpu.Queue()}
	_, err := b.Store.Accept(b.T.Context(), store.Accept{Job: job, Request: &farm.Request{Sandbox: &box.Spec}, Sandbox: box})
	workertest.Must(b.T, err)
	claim, err := b.Store.Claim(b.T.Context(), job.Ref(), p.deps.WorkerID)
	workertest.Must(b.T, err)
	return claim
}

// leased returns the devices that are leased to a sandbox.
func (b *bundle) leased(r *store.Claim) []string {
	b.T.Helper()
	now, err := b.Store.GPUs(b.T.Context(), "n1")
	workertest.Must(b.T, err)
	return now.Of(r.Sandbox.ID)
}

func TestGateOfGPUs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.placer()
	now := time.Now()
	p.gpus.now = func() time.Time { return now } // the gap between two creates does not pass
	if p.Accepts("gpu") {
		t.Error("a worker without devices takes GPU jobs")
	}
	b.withGPUs(p, "a100", "t4")
	if queues, cpu := p.Queues(); queues["gpu-a100"] == 0 || cpu {
		t.Errorf("queues %v, want gpu-a100 among them, and not cpu (%v): gpu_takes_cpu is not set", queues, cpu)
	}
	p.cfg.GPUTakesCPU = true
	if _, cpu := p.Queues(); !cpu {
		t.Error("cpu is not served")
	}
	r := b.wanting(p, farm.GPU{Count: 1, Model: "a100"})
	if !p.Accepts("gpu-a100") || p.Accepts("gpu-a100") {
		t.Error("want one create to be taken, and no other until it has its device")
	}
	ok, err := p.Reserve(t.Context(), r)
	if !ok || err != nil || len(b.leased(r)) != 1 {
		t.Fatalf("place = %v, %v, leased %v", ok, err, b.leased(r))
	}
	if p.Accepts("gpu-a100") || !p.Accepts("gpu-t4") || !p.Accepts("gpu") || !p.Accepts("control") {
		t.Error("want the gate closed for the leased a100 and open for the free t4")
	}
	late := b.wanting(p, farm.GPU{Count: 2})
	if ok, err := p.Reserve(t.Context(), late); ok || err != nil || b.leased(late) != nil {
		t.Errorf("two of one: place = %v, %v, leased %v", ok, err, b.leased(late))
	}
	p.ReleaseGPUs(t.Context(), r.Sandbox)
	testbed.Until(t, "the a100 is free", func() bool { return p.Accepts("gpu-a100") })
}

// Creates without a GPU are left to other workers while jobs wait for a GPU; if there are no such workers, only while a device is free.
func TestGPUWorkerYields(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.placer()
	b.withGPUs(p, "a100")
	for _, c := range []struct{ waiting, others, leased, yields bool }{
		{false, true, false, false}, {true, true, false, true}, {true, true, true, true}, {true, false, false, true}, {true, false, true, false},
	} {
		leases := map[string]store.GPULease{}
		if c.leased {
			leases["0"] = store.GPULease{Device: "0"}
		}
		p.gpus.update(store.GPUs{Open: true, Leases: leases})
		p.gpus.setYields(c.waiting, c.others)
		if p.Accepts(farm.QueueCPU) == c.yields {
			t.Errorf("%+v: takes creates without a GPU: %v", c, p.Accepts(farm.QueueCPU))
		}
	}
}

// A create that does not fit for lack of memory keeps no device.
func TestCreateWithoutMemoryReturnsItsGPUs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.placer()
	b.withGPUs(p, "a100")
	p.gate.capacity = farm.Capacity{MemoryMB: 1, CPUs: 1}
	r := b.wanting(p, farm.GPU{Count: 1})
	r.Sandbox.Spec.Resources = farm.Resources{MemoryMB: 100, CPUs: 1}
	if ok, err := p.Reserve(t.Context(), r); ok || err != nil || b.leased(r) != nil {
		t.Errorf("place = %v, %v, leased %v", ok, err, b.leased(r))
	}
}

// Leases of ended sandboxes, and of those that a dead worker did not start, end; others stay.
func TestEndedLeasesAreReturned(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.placer()
	b.withGPUs(p, "a100", "a100", "a100", "a100", "a100")
	var runs []*store.Claim
	for range 5 {
		r := b.wanting(p, farm.GPU{Count: 1})
		if ok, err := p.Reserve(t.Context(), r); !ok || err != nil {
			t.Fatalf("place = %v, %v", ok, err)
		}
		runs = append(runs, r)
	}
	started, ended, left, contained, moved := runs[0], runs[1], runs[2], runs[3], runs[4]
	for _, r := range []*store.Claim{started, ended, contained} {
		_, err := b.Store.MoveSandbox(t.Context(), store.Move{Ref: r.Sandbox.Ref(), To: farm.SandboxStarting, Node: "n1"})
		workertest.Must(t, err)
	}
	for _, r := range []*store.Claim{ended, contained} {
		b.Move(r.Sandbox.Ref(), farm.SandboxFailed)
	}
	b.Fake.Put(contained.Sandbox.ID, true)
	_, err := b.Store.MoveSandbox(t.Context(), store.Move{Ref: moved.Sandbox.Ref(), To: farm.SandboxStarting, Node: "n2"})
	workertest.Must(t, err)
	workertest.Must(t, p.ReconcileGPUs(t.Context()))
	if got := b.leased(moved); len(got) != 0 {
		t.Errorf("OnAnotherNode: leased %v while its worker is alive", got)
	}
	workertest.Must(t, b.Store.RemoveWorker(t.Context(), p.deps.WorkerID))
	other := b.placer()
	b.withGPUs(other, "a100", "a100", "a100", "a100", "a100")
	for name, c := range map[string]struct {
		r    *store.Claim
		want int
	}{"Started": {started, 1}, "Ended": {ended, 0}, "LeftByADeadWorker": {left, 0}, "WithAContainer": {contained, 1}} {
		if got := b.leased(c.r); len(got) != c.want {
			t.Errorf("%s: leased %v, want %d", name, got, c.want)
		}
	}
	again := b.wanting(p, farm.GPU{Count: 1})
	if ok, err := p.Reserve(t.Context(), again); !ok || err != nil {
		t.Fatalf("place = %v, %v", ok, err)
	}
	workertest.Must(t, b.Store.RemoveWorker(t.Context(), p.deps.WorkerID))
	workertest.Must(t, other.RefreshGPUs(t.Context()))
	if got := b.leased(again); got != nil {
		t.Errorf("a heartbeat leaves %v with a dead worker", got)
	}
}

// When Redis lost its data, no device is leased before the reconciler has restored the leases.
func TestNothingIsLeasedBeforeReconciling(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.placer()
	b.withGPUs(p, "a100")
	b.Redis.FlushAll()
	workertest.Must(t, b.Store.Heartbeat(t.Context(), farm.Worker{ID: p.deps.WorkerID, Node: "n1"}))
	r := b.wanting(p, farm.GPU{Count: 1})
	if ok, err := p.Reserve(t.Context(), r); ok || err != nil {
		t.Fatalf("place = %v, %v before reconciling", ok, err)
	}
	workertest.Must(t, p.ReconcileGPUs(t.Context()))
	testbed.Until(t, "the device may be leased", func() bool { return p.Accepts("gpu") })
	if ok, err := p.Reserve(t.Context(), r); !ok || err != nil {
		t.Errorf("place = %v, %v after reconciling", ok, err)
	}
	if len(p.gpus.kept(r.Sandbox.ID)) != 1 {
		t.Error("the device is not kept")
	}
}

// Of two containers for one device, the running one has it, whichever the engine lists first.
func TestRunningContainerKeepsItsDevices(t *testing.T) {
	t.Parallel()
	list := []farm.Container{{ID: "made"}, {ID: "runs", Running: true}, {ID: "also made"}}
	slices.SortStableFunc(list, runningFirst)
	if list[0].ID != "runs" || list[1].ID != "made" {
		t.Errorf("the order is %v", list)
	}
}

package worker

import (
	"slices"
	"testing"

	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// withGPUs gives a worker that is not started devices, which may be leased.
func (b *bundle) withGPUs(w *Worker, models ...string) {
	b.t.Helper()
	devices := make([]farm.GPUDevice, len(models))
	for i, model := range models {
		devices[i] = farm.GPUDevice{ID: string(rune('0' + i)), Model: model}
	}
	w.gpus.set(devices, engine.GPUSupport{Driver: engine.DriverNvidia}, nil)
	w.room.node, w.room.capacity = w.node, farm.Capacity{MemoryMB: 1 << 20, CPUs: 64}
	must(b.t, w.reconcileGPUs(b.t.Context()))
}

// wanting makes the creation of a sandbox with GPUs, and gives it into a worker's hands.
func (b *bundle) wanting(w *Worker, gpu farm.GPU) *run {
	b.t.Helper()
	box := &farm.Sandbox{ID: farm.NewID(farm.SandboxPrefix), Tenant: tenant, Spec: farm.SandboxSpec{Image: "python", TTLSeconds: 3600, GPU: &gpu}}
	job := &farm.Job{ID: farm.NewID(farm.JobPrefix), Tenant: tenant, Kind: farm.KindCreate, SandboxID: box.ID, Queue: gpu.Queue()}
	_, err := b.store.Accept(b.t.Context(), store.Accept{Job: job, Request: &farm.Request{Sandbox: &box.Spec}, Sandbox: box})
	must(b.t, err)
	claim, err := b.store.Claim(b.t.Context(), job.Ref(), w.id)
	must(b.t, err)
	return &run{Claim: claim, cancel: make(chan struct{})}
}

// leased gives the devices that a sandbox has on the node.
func (b *bundle) leased(r *run) []string {
	b.t.Helper()
	now, err := b.store.GPUs(b.t.Context(), "n1")
	must(b.t, err)
	devices, _ := now.Of(r.Sandbox.ID)
	return devices
}

func TestGateOfGPUs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker()
	if w.gate("gpu") {
		t.Error("a worker without devices takes jobs for GPUs")
	}
	b.withGPUs(w, "a100", "t4")
	if _, serves := w.queues()["gpu-a100"]; !serves || w.queues()["cpu"] != 0 {
		t.Errorf("queues %v, want gpu-a100 among them, and not cpu: gpu_takes_cpu is not set", w.queues())
	}
	w.cfg.GPUTakesCPU = true
	if w.queues()["cpu"] == 0 {
		t.Error("cpu is not served")
	}
	r := b.wanting(w, farm.GPU{Count: 1, Model: "a100"})
	if !w.gate("gpu-a100") || w.gate("gpu-a100") {
		t.Error("one create is taken, and none beside it until it has its device")
	}
	ok, err := w.place(t.Context(), r)
	if !ok || err != nil || len(b.leased(r)) != 1 {
		t.Fatalf("place = %v, %v, leased %v", ok, err, b.leased(r))
	}
	if w.gate("gpu-a100") || !w.gate("gpu-t4") || !w.gate("gpu") || !w.gate("control") {
		t.Error("the a100 is leased, the t4 is not")
	}
	late := b.wanting(w, farm.GPU{Count: 2})
	if ok, err := w.place(t.Context(), late); ok || err != nil || b.leased(late) != nil {
		t.Errorf("two of one: place = %v, %v, leased %v", ok, err, b.leased(late))
	}
	w.leaveGPUs(t.Context(), r.Sandbox)
	until(t, "the a100 is free", func() bool { return w.gate("gpu-a100") })
}

// Creates that need no GPU are left to others while jobs wait for one; where there are no others, only while a device is free.
func TestGPUWorkerYields(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker()
	b.withGPUs(w, "a100")
	for _, c := range []struct{ waiting, others, leased, yields bool }{
		{false, true, false, false}, {true, true, false, true}, {true, true, true, true}, {true, false, false, true}, {true, false, true, false},
	} {
		leases := map[string]store.GPULease{}
		if c.leased {
			leases["0"] = store.GPULease{Device: "0"}
		}
		w.gpus.learn(store.GPUs{Open: true, Leases: leases})
		w.gpus.yield(c.waiting, c.others)
		if w.gate(farm.QueueCPU) == c.yields {
			t.Errorf("%+v: takes creates without a GPU: %v", c, w.gate(farm.QueueCPU))
		}
	}
}

// What fits no node for want of memory keeps no device.
func TestNoRoomReturnsTheGPUs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker()
	b.withGPUs(w, "a100")
	w.room.capacity = farm.Capacity{MemoryMB: 1, CPUs: 1}
	r := b.wanting(w, farm.GPU{Count: 1})
	r.Sandbox.Spec.Resources = farm.Resources{MemoryMB: 100, CPUs: 1}
	if ok, err := w.place(t.Context(), r); ok || err != nil || b.leased(r) != nil {
		t.Errorf("place = %v, %v, leased %v", ok, err, b.leased(r))
	}
}

// Leases of sandboxes that have ended, and of those that a dead worker did not begin, are free; others stay.
func TestLeasesThatAreOver(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker()
	b.withGPUs(w, "a100", "a100", "a100", "a100", "a100")
	var runs []*run
	for range 5 {
		r := b.wanting(w, farm.GPU{Count: 1})
		if ok, err := w.place(t.Context(), r); !ok || err != nil {
			t.Fatalf("place = %v, %v", ok, err)
		}
		runs = append(runs, r)
	}
	begun, ended, left, contained, moved := runs[0], runs[1], runs[2], runs[3], runs[4]
	for _, r := range []*run{begun, ended, contained} {
		_, err := b.store.MoveSandbox(t.Context(), store.Move{Ref: ref(r.Sandbox), To: farm.SandboxStarting, Node: "n1"})
		must(t, err)
	}
	for _, r := range []*run{ended, contained} {
		b.move(ref(r.Sandbox), farm.SandboxFailed)
	}
	b.eng.put(contained.Sandbox.ID, true)
	_, err := b.store.MoveSandbox(t.Context(), store.Move{Ref: ref(moved.Sandbox), To: farm.SandboxStarting, Node: "n2"})
	must(t, err)
	must(t, w.reconcileGPUs(t.Context()))
	if got := b.leased(moved); len(got) != 0 {
		t.Errorf("MadeElsewhere: leased %v while its worker lives", got)
	}
	must(t, b.store.RemoveWorker(t.Context(), w.id))
	other := b.worker()
	b.withGPUs(other, "a100", "a100", "a100", "a100", "a100")
	for name, c := range map[string]struct {
		r    *run
		want int
	}{"Begun": {begun, 1}, "Ended": {ended, 0}, "LeftByADeadWorker": {left, 0}, "WithAContainer": {contained, 1}} {
		if got := b.leased(c.r); len(got) != c.want {
			t.Errorf("%s: leased %v, want %d", name, got, c.want)
		}
	}
	again := b.wanting(w, farm.GPU{Count: 1})
	if ok, err := w.place(t.Context(), again); !ok || err != nil {
		t.Fatalf("place = %v, %v", ok, err)
	}
	must(t, b.store.RemoveWorker(t.Context(), w.id))
	must(t, other.lookAtGPUs(t.Context()))
	if got := b.leased(again); got != nil {
		t.Errorf("a heartbeat leaves %v with a dead worker", got)
	}
}

// Redis loses everything while a sandbox runs: its devices are its own again before any is leased.
func TestNothingIsLeasedBeforeTheLook(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker()
	b.withGPUs(w, "a100")
	b.redis.FlushAll()
	must(t, b.store.Heartbeat(t.Context(), farm.Worker{ID: w.id, Node: "n1"}))
	r := b.wanting(w, farm.GPU{Count: 1})
	if ok, err := w.place(t.Context(), r); ok || err != nil {
		t.Fatalf("place = %v, %v before the look", ok, err)
	}
	must(t, w.reconcileGPUs(t.Context()))
	until(t, "the device may be leased", func() bool { return w.gate("gpu") })
	if ok, err := w.place(t.Context(), r); !ok || err != nil {
		t.Errorf("place = %v, %v after the look", ok, err)
	}
	if w.gpus.kept(r.Sandbox.ID).fence == 0 {
		t.Error("no fence is kept")
	}
}

// Of two containers that were made for one device, the one that runs has it, whichever the engine lists first.
func TestWhatRunsKeepsItsDevices(t *testing.T) {
	t.Parallel()
	list := []engine.Container{{ID: "made"}, {ID: "runs", Running: true}, {ID: "also made"}}
	slices.SortStableFunc(list, runningFirst)
	if list[0].ID != "runs" || list[1].ID != "made" {
		t.Errorf("the order is %v", list)
	}
}

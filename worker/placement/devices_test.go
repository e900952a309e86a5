package placement

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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
	testbed.Must(b.T, p.ReconcileGPUs(b.T.Context()))
}

// wanting accepts the create of a sandbox with GPUs, and claims it for a worker.
func (b *bundle) wanting(p *Placer, gpu farm.GPU) *store.Claim {
	b.T.Helper()
	box := &farm.Sandbox{ID: farm.NewID(farm.SandboxPrefix), Tenant: workertest.Tenant, Spec: farm.SandboxSpec{Image: "python", TTLSeconds: 3600, GPU: &gpu}}
	job := &farm.Job{ID: farm.NewID(farm.JobPrefix), Tenant: workertest.Tenant, Kind: farm.KindCreate, SandboxID: box.ID, Queue: gpu.Queue()}
	_, err := b.Store.Accept(b.T.Context(), store.Accept{Job: job, Request: &farm.Request{Sandbox: &box.Spec}, Sandbox: box})
	testbed.Must(b.T, err)
	claim := b.Claim(job.Ref(), p.deps.WorkerID)
	return claim
}

// leased returns the devices that are leased to a sandbox.
func (b *bundle) leased(r *store.Claim) []string {
	b.T.Helper()
	now, err := b.Store.GPUs(b.T.Context(), "n1")
	testbed.Must(b.T, err)
	return now.Of(r.Sandbox.ID)
}

func TestGateOfGPUs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.placer()
	now := time.Now()
	p.gpus.now = func() time.Time { return now } // the gap between two creates does not pass
	testbed.Check(t, !p.Accepts("gpu"), "a worker without devices takes GPU jobs")
	b.withGPUs(p, "a100", "t4")
	if queues, cpu := p.Queues(); queues["gpu-a100"] == 0 || cpu {
		t.Errorf("queues %v, want gpu-a100 among them, and not cpu (%v): gpu_takes_cpu is not set", queues, cpu)
	}
	p.cfg.GPUTakesCPU = true
	_, cpu := p.Queues()
	testbed.Check(t, cpu, "cpu is not served")
	r := b.wanting(p, farm.GPU{Count: 1, Model: "a100"})
	testbed.Check(t, p.Accepts("gpu-a100") && !p.Accepts("gpu-a100"), "want one create to be taken, and no other until it has its device")
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
	testbed.Must(t, p.RefreshGPUs(t.Context()))
	testbed.Check(t, p.Accepts(farm.QueueCPU), "a create that waits for devices keeps those that need none waiting")
	p.ReleaseGPUs(t.Context(), r.Sandbox)
	testbed.Until(t, "the a100 is free", func() bool { return p.Accepts("gpu-a100") })
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
		ok, err := p.Reserve(t.Context(), r)
		testbed.Require(t, ok && err == nil, "place = %v, %v", ok, err)
		runs = append(runs, r)
	}
	started, ended, left, contained, moved := runs[0], runs[1], runs[2], runs[3], runs[4]
	for _, r := range []*store.Claim{started, ended, contained} {
		_, err := b.Store.MoveSandbox(t.Context(), store.Move{Ref: r.Sandbox.Ref(), To: farm.SandboxStarting, Node: "n1"})
		testbed.Must(t, err)
	}
	for _, r := range []*store.Claim{ended, contained} {
		b.Move(r.Sandbox.Ref(), farm.SandboxFailed)
	}
	b.Fake.Put(contained.Sandbox.ID, true)
	_, err := b.Store.MoveSandbox(t.Context(), store.Move{Ref: moved.Sandbox.Ref(), To: farm.SandboxStarting, Node: "n2"})
	testbed.Must(t, err)
	testbed.Must(t, p.ReconcileGPUs(t.Context()))
	got := b.leased(moved)
	testbed.Check(t, len(got) == 0, "OnAnotherNode: leased %v while its worker is alive", got)
	testbed.Must(t, b.Store.RemoveWorker(t.Context(), p.deps.WorkerID))
	other := b.placer()
	b.withGPUs(other, "a100", "a100", "a100", "a100", "a100")
	for name, c := range map[string]struct {
		r    *store.Claim
		want int
	}{"Started": {started, 1}, "Ended": {ended, 0}, "LeftByADeadWorker": {left, 0}, "WithAContainer": {contained, 1}} {
		got := b.leased(c.r)
		testbed.Check(t, len(got) == c.want, "%s: leased %v, want %d", name, got, c.want)
	}
	again := b.wanting(p, farm.GPU{Count: 1})
	ok, err := p.Reserve(t.Context(), again)
	testbed.Require(t, ok && err == nil, "place = %v, %v", ok, err)
	testbed.Must(t, b.Store.RemoveWorker(t.Context(), p.deps.WorkerID))
	testbed.Must(t, other.RefreshGPUs(t.Context()))
	got = b.leased(again)
	testbed.Check(t, got == nil, "a heartbeat leaves %v with a dead worker", got)
}

// When Redis lost its data, no device is leased before the reconciler has restored the leases.
func TestNothingIsLeasedBeforeReconciling(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.placer()
	b.withGPUs(p, "a100")
	b.Redis.FlushAll()
	testbed.Must(t, b.Store.Heartbeat(t.Context(), farm.Worker{ID: p.deps.WorkerID, Node: "n1"}))
	r := b.wanting(p, farm.GPU{Count: 1})
	ok, err := p.Reserve(t.Context(), r)
	testbed.Require(t, !ok && err == nil, "place = %v, %v before reconciling", ok, err)
	testbed.Must(t, p.ReconcileGPUs(t.Context()))
	testbed.Until(t, "the device may be leased", func() bool { return p.Accepts("gpu") })
	ok, err = p.Reserve(t.Context(), r)
	testbed.Check(t, ok && err == nil, "place = %v, %v after reconciling", ok, err)
	testbed.Check(t, len(p.gpus.kept(r.Sandbox.ID)) == 1, "the device is not kept")
}

// Of two containers for one device, the running one has it, whichever the engine lists first.
func TestRunningContainerKeepsItsDevices(t *testing.T) {
	t.Parallel()
	list := []farm.Container{{ID: "made"}, {ID: "runs", Running: true}, {ID: "also made"}}
	slices.SortStableFunc(list, runningFirst)
	testbed.Check(t, list[0].ID == "runs" && list[1].ID == "made", "the order is %v", list)
}

func smi(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "nvidia-smi")
	// Another process writes it: a file that this one has open for writing cannot be executed, and forks of other tests inherit it.
	write := exec.CommandContext(t.Context(), "sh", "-c", `cat >"$0" && chmod 755 "$0"`, path)
	write.Stdin = strings.NewReader("#!/bin/sh\n" + script)
	testbed.Must(t, write.Run())
	return path
}

func TestDevices(t *testing.T) {
	t.Parallel()
	program := smi(t, `[ "$1 $2" = "--query-gpu=index,uuid,name,memory.total,mig.mode.current --format=csv,noheader,nounits" ] || exit 9
echo "0, GPU-8f1c, NVIDIA A100-SXM4-80GB, 81920, Disabled"
echo "1, GPU-77aa, NVIDIA A100-SXM4-80GB, 81920, Enabled"
echo "2, GPU-0c0c, NVIDIA GB10, [N/A], [N/A]"
`)
	got, err := devices(t.Context(), program)
	testbed.Must(t, err)
	want := []GPUDevice{
		{GPUDevice: farm.GPUDevice{ID: "GPU-8f1c", Model: "a100-sxm4-80gb", MemoryMB: 81920}, Index: "0", Name: "NVIDIA A100-SXM4-80GB"},
		{GPUDevice: farm.GPUDevice{ID: "GPU-77aa", Model: "a100-sxm4-80gb", MemoryMB: 81920}, Index: "1", Name: "NVIDIA A100-SXM4-80GB", MIG: true},
		{GPUDevice: farm.GPUDevice{ID: "GPU-0c0c", Model: "gb10"}, Index: "2", Name: "NVIDIA GB10"},
	}
	testbed.Diff(t, "devices", want, got)
}

func TestNoDriver(t *testing.T) {
	t.Parallel()
	got, err := devices(t.Context(), "no-such-nvidia-smi")
	testbed.Check(t, got == nil && err == nil, "devices = %v, %v", got, err)
	got, err = devices(t.Context(), smi(t, "exit 0\n"))
	testbed.Check(t, got == nil && err == nil, "a driver without devices: %v, %v", got, err)
}

func TestBrokenDriver(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ script, want string }{
		"Fails":  {"echo 'Failed to initialize NVML: Driver/library version mismatch'\nexit 18\n", "version mismatch"},
		"Fields": {"echo '0, GPU-1'\n", "wrong number of fields"},
		"NoUUID": {"echo '0, all, A100, 1, Disabled'\n", "not the UUID"},
		"Two":    {"echo '0, \"GPU-1,GPU-2\", A100, 1, Disabled'\n", "not the UUID"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := devices(t.Context(), smi(t, c.script))
			if err == nil || !strings.Contains(err.Error(), c.want) || got != nil {
				t.Errorf("devices = %v, %v, want an error that holds %q", got, err, c.want)
			}
		})
	}
}

// What the programs of a host use is known where the engine's host is this machine.
func TestMachineIsThisHost(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("/proc/meminfo")
	testbed.Must(t, err)
	first, _, _ := strings.Cut(string(text), "\n")
	kib, err := strconv.Atoi(strings.Fields(first)[1])
	testbed.Must(t, err)
	total := kib >> 10
	m := machineOf(farm.Capacity{MemoryMB: total, CPUs: 2})
	testbed.Check(t, m != nil && m.MemoryMB == total && m.UsedMB > 0 && m.UsedMB < total && m.CPUs == 2 && m.Load >= 0, "%+v", m)
	for _, other := range []int{0, total - 1, total + 1} {
		m := machineOf(farm.Capacity{MemoryMB: other})
		testbed.Check(t, m == nil, "a host of %d MiB: %+v", other, m)
	}
}

func TestAvailableMemory(t *testing.T) {
	t.Parallel()
	const text = "MemTotal:       8138204 kB\nMemFree:         123456 kB\nMemAvailable:    4194303 kB\nHugePages_Total:       0\n"
	for name, c := range map[string]struct {
		text        string
		total, want int
	}{
		"this machine":    {text, 8138204 >> 10, 4095},
		"another one":     {text, 8138204>>10 + 1, -1},
		"an old kernel":   {strings.Replace(text, "MemAvailable", "Other", 1), 8138204 >> 10, -1},
		"empty":           {"", 0, -1},
		"nothing is left": {strings.Replace(text, "4194303", "0", 1), 8138204 >> 10, 0},
	} {
		testbed.Diff(t, name, c.want, parseAvailable(c.text, c.total))
	}
}

func TestListedGPUs(t *testing.T) {
	t.Parallel()
	a100 := func(id string) farm.GPUDevice { return farm.GPUDevice{ID: id, Model: "a100", MemoryMB: 81920} }
	for name, c := range map[string]struct {
		items  []string
		want   []farm.GPUDevice
		listed bool
	}{
		"LookForThem": {},
		"None":        {items: []string{"none"}, listed: true},
		"One":         {items: []string{"model=A100,memory_mb=81920"}, want: []farm.GPUDevice{a100("0")}, listed: true},
		"Counted":     {items: []string{"model=NVIDIA A100,memory_mb=81920,count=2"}, want: []farm.GPUDevice{a100("0"), a100("1")}, listed: true},
		"EachForItself": {
			items: []string{"model=A100,memory_mb=81920", "model=T4,id=GPU-1", "model=T4"},
			want:  []farm.GPUDevice{a100("0"), {ID: "GPU-1", Model: "t4"}, {ID: "2", Model: "t4"}}, listed: true,
		},
		"CutByTheEnvironment": {
			items: []string{"model=A100", "memory_mb=81920", "model=T4", "id=7", "model=A100", "id=MIG-1", "memory_mb=81920"},
			want:  []farm.GPUDevice{a100("0"), {ID: "7", Model: "t4"}, a100("MIG-1")}, listed: true,
		},
		"Most": {items: []string{"model=A100,memory_mb=81920,count=63,model=T4,id=last"}, listed: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, listed, err := listedGPUs(c.items)
			if name == "Most" {
				testbed.Check(t, err == nil && len(got) == farm.MaxGPUs, "%d devices, %v", len(got), err)
				return
			}
			diff := cmp.Diff(c.want, got)
			testbed.Check(t, err == nil && listed == c.listed && diff == "", "listed %v, %v\n%s", listed, err, diff)
		})
	}
	for text, want := range map[string]string{
		"model=A100,count=64,model=T4": "65 devices; at most 64",
		"model=A100,count=65":          "1 to 64",
		"model=A100,count=0":           "1 to 64",
		"model=A100,memory_mb=0":       "1 to 104857600",
		"model=A100,memory_mb=80GB":    "1 to 104857600",
		"model=A100,id=a b":            "not an id",
		"model=A100,id=":               "not an id",
		"model=A100,id=1,count=2":      "1 twice",
		"model=A100,id=1,model=T4":     "1 twice",
		"id=3":                         `begins with "id"`,
		"model=--":                     "not a model",
		"A100":                         `begins with "A100"`,
		"none,model=A100":              `begins with "none"`,
		"model=A100,none":              `holds "none"`,
	} {
		_, _, err := listedGPUs([]string{text})
		testbed.Check(t, err != nil && strings.Contains(err.Error(), want), "%s: %v, want an error that holds %q", text, err, want)
	}
}

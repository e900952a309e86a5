package api_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/api/access"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// waiting submits a create that no worker runs.
func (b *bundle) waiting(tenant string) *farm.Job {
	b.t.Helper()
	box := &farm.Sandbox{ID: farm.NewID(farm.SandboxPrefix), Tenant: tenant, Spec: farm.SandboxSpec{Image: "python", TTLSeconds: 3600}}
	out, err := b.store.Accept(b.t.Context(), store.Accept{
		Job:     &farm.Job{ID: farm.NewID(farm.JobPrefix), Tenant: tenant, Kind: farm.KindCreate, SandboxID: box.ID, Queue: farm.QueueCPU},
		Request: &farm.Request{Sandbox: &box.Spec}, Sandbox: box,
	})
	testbed.Must(b.t, err)
	return out.Job
}

func TestWaitingCreateShowsItsPosition(t *testing.T) {
	t.Parallel()
	b := setup(t, withKeys)
	auth := []string{"Authorization", "Bearer " + key}
	var last *farm.Job
	for range 3 {
		last = b.waiting("acme")
	}
	b.waiting("rival")
	got := get[wire.Job](b, http.StatusOK, "GET", "/v1/jobs/"+last.ID, nil, auth...)
	if got.State != "queued" || got.Position != 3 || got.EstimateSeconds != nil {
		t.Errorf("waiting create: %+v", got)
	}
	_, text := b.do("GET", "/v1/jobs/"+last.ID, nil, auth...)
	if !strings.Contains(string(text), `"estimate_seconds":null`) {
		t.Errorf("an estimate that is not known is not null: %s", text)
	}
	for i := range 2 { // two creates have started
		r := store.ReserveRequest{Node: "n1", Capacity: farm.Capacity{MemoryMB: 100, CPUs: 1}, Sandbox: farm.Ref{Tenant: "acme", ID: fmt.Sprint(i)}, Queue: farm.QueueCPU}
		if _, _, err := b.store.Reserve(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Millisecond) // the estimate is computed from the time between starts
	}
	if got = get[wire.Job](b, http.StatusOK, "GET", "/v1/jobs/"+last.ID, nil, auth...); got.EstimateSeconds == nil || *got.EstimateSeconds < 1 || *got.EstimateSeconds > 60 {
		t.Errorf("estimate: %+v", got.EstimateSeconds)
	}
	// A job of that sandbox has its position in the FIFO of the sandbox.
	out, err := b.store.Accept(t.Context(), store.Accept{
		Job: &farm.Job{ID: farm.NewID(farm.JobPrefix), Tenant: "acme", Kind: farm.KindExecute, SandboxID: last.SandboxID}, Request: &farm.Request{},
	})
	testbed.Must(t, err)
	if got = get[wire.Job](b, http.StatusOK, "GET", "/v1/jobs/"+out.Job.ID, nil, auth...); got.Position != 2 || got.EstimateSeconds != nil {
		t.Errorf("behind the create: %+v", got)
	}
}

// TestQueuedJobSaysWhatItWaitsFor looks at the same create while there is no worker, no room, too little of a share, and no obstacle.
func TestQueuedJobSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	var later atomic.Int64 // seconds
	b := setup(t, func(_ *api.Config, d *api.Deps) {
		d.Now = func() time.Time { return time.Now().Add(time.Duration(later.Load()) * time.Second) }
	})
	says := func(job *farm.Job, code, message string) {
		t.Helper()
		got := get[wire.Job](b, http.StatusOK, "GET", "/v1/jobs/"+job.ID, nil)
		if got.Waiting == nil || got.Waiting.Code != code || !strings.Contains(got.Waiting.Message, message) {
			t.Errorf("job %s waits for %+v, want %s: %s", job.ID, got.Waiting, code, message)
		}
	}
	accept := func(a store.Accept) *farm.Job {
		t.Helper()
		a.Job.Tenant, a.Job.Redacted = access.DefaultTenant, a.Request
		if a.Sandbox != nil {
			a.Sandbox.Tenant = access.DefaultTenant
		}
		out, err := b.store.Accept(t.Context(), a)
		testbed.Must(t, err)
		return out.Job
	}
	worker := farm.Worker{
		ID: "wrk_1", Node: "n1", Queues: []string{farm.QueueCPU}, Images: []farm.Image{{Name: "python"}}, Slots: 4,
		Capacity: farm.Capacity{MemoryMB: 4096, CPUs: 4}, Reserved: farm.Capacity{MemoryMB: 4096, CPUs: 4},
	}
	beat := func() {
		t.Helper()
		later.Add(5) // what is known of the nodes is read again
		testbed.Must(t, b.store.Heartbeat(t.Context(), worker))
	}
	create := storetest.Create()
	create.Sandbox.Spec.Image, create.Sandbox.Spec.Resources = "python", farm.Resources{MemoryMB: 512, CPUs: 1}
	first := accept(create)
	testbed.Must(t, b.store.RemoveWorker(t.Context(), worker.ID))
	later.Add(5)
	says(first, "no_worker", "No worker is alive")
	beat()
	says(first, "no_room", "No node has 512 MiB of memory and 1 cores free")
	worker.Draining = true
	beat()
	says(first, "drain", "take no new sandboxes")
	worker.Draining, worker.Reserved = false, farm.Capacity{}
	beat()
	says(first, "queue", "It is next in the queue cpu.")
	says(accept(storetest.Execute(first.SandboxID)), "fifo", "one comes first: "+first.ID+" (create, queued)")
	b.do("PATCH", "/v1/tenants/"+access.DefaultTenant, `{"set":{"max_running":1}}`)
	says(accept(storetest.Create()), "max_running", "As many jobs of your tenant run or are about to as its quota max_running allows: 1.")
}

func TestSandboxLargerThanAnyNodeIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for id, capacity := range map[string]farm.Capacity{"wrk_1": {MemoryMB: 4096, CPUs: 16}, "wrk_2": {MemoryMB: 8192, CPUs: 4}} {
		err := b.store.Heartbeat(t.Context(), farm.Worker{ID: id, Node: "node-of-" + id, Images: []farm.Image{{Name: "python", Languages: []string{"python"}}}, Capacity: capacity, Reserved: farm.Capacity{MemoryMB: 4000}, Machine: &farm.Machine{MemoryMB: 9000, UsedMB: 100, CPUs: 2, Load: 0.5}})
		testbed.Must(t, err)
	}
	for _, path := range []string{"/v1/sandboxes", "/v1/run"} {
		for size, fits := range map[string]bool{
			`"memory_mb":8192,"cpus":4`: true, `"memory_mb":4096,"cpus":16`: true, // full nodes: the create waits
			`"memory_mb":8193,"cpus":1`: false, `"memory_mb":64,"cpus":16.5`: false, `"memory_mb":8192,"cpus":16`: false,
		} {
			body := fmt.Sprintf(`{"resources":{%s}}`, size)
			if path == "/v1/run" {
				body = fmt.Sprintf(`{"code":"1","resources":{%s}}`, size)
			}
			if fits {
				if answer, text := b.do("POST", path, body); answer.StatusCode/100 != 2 {
					t.Errorf("%s %s: %d %s", path, body, answer.StatusCode, text)
				}
				continue
			}
			p := b.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "POST", path, body)
			if !strings.Contains(p.Detail, "larger than any node: the largest has 8192 MiB and 4 cores") {
				t.Errorf("%s %s: %s", path, body, p.Detail)
			}
		}
	}
	list := get[wire.Items[wire.Worker]](b, http.StatusOK, "GET", "/v1/workers", nil)
	if got := list.Items[1]; got.Capacity != (wire.Room{MemoryMB: 8192, CPUs: 4}) || got.Promised != (wire.Room{MemoryMB: 4000}) || got.Machine == nil || *got.Machine != (wire.Machine{MemoryMB: 9000, UsedMB: 100, CPUs: 2, Load: 0.5}) {
		t.Errorf("worker %+v", got)
	}
}

// Overcommit lets many sandboxes share a host. It does not let one be larger than the host.
func TestSandboxLargerThanAnyHostIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	image := []farm.Image{{Name: "python", Languages: []string{"python"}}}
	for id, largest := range map[string]int{"wrk_1": 1023, "wrk_2": 2048} {
		w := farm.Worker{ID: id, Node: "node-of-" + id, Images: image, Capacity: farm.Capacity{MemoryMB: 16 * largest, CPUs: 128}, LargestMB: largest}
		testbed.Must(t, b.store.Heartbeat(t.Context(), w))
	}
	for memory, fits := range map[int]bool{2047: true, 2048: true, 2049: false, 16 * 2048: false} {
		body := fmt.Sprintf(`{"resources":{"memory_mb":%d}}`, memory)
		if fits {
			if answer, text := b.do("POST", "/v1/sandboxes", body); answer.StatusCode/100 != 2 {
				t.Errorf("%s: %d %s", body, answer.StatusCode, text)
			}
			continue
		}
		if p := b.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "POST", "/v1/sandboxes", body); !strings.Contains(p.Detail, "the largest has 2048 MiB and 128 cores") {
			t.Errorf("%s: %s", body, p.Detail)
		}
	}
}

func TestFullQueueIsReportedToTheCaller(t *testing.T) {
	t.Parallel()
	b := setup(t, withKeys, func(c *api.Config, _ *api.Deps) {
		c.Limits = farm.DefaultLimits()
		c.Limits.MaxQueueDepth = 3
	})
	for range 2 {
		b.waiting("acme")
	}
	if answer, text := b.do("POST", "/v1/sandboxes?wait=20", "{}", "Authorization", "Bearer "+key); answer.StatusCode != http.StatusCreated {
		t.Fatalf("one below the limit: %d %s", answer.StatusCode, text)
	}
	b.waiting("acme")
	answer, text := b.do("POST", "/v1/sandboxes", "{}", "Authorization", "Bearer "+key)
	if answer.StatusCode != http.StatusTooManyRequests || answer.Header.Get("Retry-After") == "" || !strings.Contains(string(text), "3 jobs wait in queue cpu") {
		t.Errorf("at the limit: %d %v %s", answer.StatusCode, answer.Header, text)
	}
	if answer, text := b.do("POST", "/v1/sandboxes?wait=20", "{}", "Authorization", "Bearer "+otherKey); answer.StatusCode != http.StatusCreated {
		t.Errorf("another tenant: %d %s", answer.StatusCode, text)
	}
}

// gpuWorkers adds two workers of a node with three devices (one leased), one of a node with one device, and one without.
func (b *bundle) gpuWorkers() {
	b.t.Helper()
	a := []farm.GPUDevice{{ID: "GPU-1", Model: "a100-sxm4-80gb", MemoryMB: 81920, Leased: true}, {ID: "GPU-2", Model: "a100-sxm4-80gb", MemoryMB: 81920}, {ID: "GPU-3", Model: "t4"}}
	image := []farm.Image{{Name: "python", Languages: []string{"python"}}}
	for _, w := range []farm.Worker{
		{ID: "wrk_a1", Node: "n1", Host: "host-a", GPUs: a, Images: image, Capacity: farm.Capacity{MemoryMB: 4096, CPUs: 8}},
		{ID: "wrk_a2", Node: "n1", Host: "host-a", GPUs: a, Images: image, Capacity: farm.Capacity{MemoryMB: 4096, CPUs: 8}},
		{ID: "wrk_b", Node: "n2", Host: "host-b", GPUs: []farm.GPUDevice{{ID: "0", Model: "a100-pcie-40gb", MemoryMB: 40960}}, Images: image},
		{ID: "wrk_c", Node: "n3", Host: "host-c", Images: image, Capacity: farm.Capacity{MemoryMB: 65536, CPUs: 64}},
	} {
		testbed.Must(b.t, b.store.Heartbeat(b.t.Context(), w))
	}
}

func TestGPURequestsGoToTheirQueue(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.gpuWorkers()
	for name, c := range map[string]struct {
		gpu   map[string]any
		queue string
		want  *wire.GPU
	}{
		"Any":       {map[string]any{"count": 3}, "gpu", &wire.GPU{Count: 3}},
		"Model":     {map[string]any{"count": 2, "model": "A100"}, "gpu-a100", &wire.GPU{Count: 2, Model: "a100"}},
		"WholeName": {map[string]any{"count": 1, "model": "NVIDIA A100-PCIE-40GB"}, "gpu-a100-pcie-40gb", &wire.GPU{Count: 1, Model: "a100-pcie-40gb"}},
		"NoCount":   {map[string]any{"model": "a100"}, "gpu-a100", &wire.GPU{Count: 1, Model: "a100"}},
		"Nothing":   {map[string]any{}, "cpu", nil},
		"None":      {map[string]any{"count": 0, "model": "h100"}, "cpu", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := *b
			b.t = t
			made := get[wire.Created](&b, http.StatusAccepted, "POST", "/v1/sandboxes?wait=0", map[string]any{"gpu": c.gpu})
			job, err := b.store.Job(t.Context(), farm.Ref{Tenant: "default", ID: made.Job.ID})
			if err != nil || job.Queue != c.queue {
				t.Errorf("queue %q, %v, want %q", job.Queue, err, c.queue)
			}
			testbed.Diff(t, "gpu of the sandbox", c.want, made.Sandbox.GPU)
		})
	}
}

func TestGPURequestsThatNoNodeCanServe(t *testing.T) {
	t.Parallel()
	b := setup(t)
	there := "1 × a100-pcie-40gb (40960 MiB) or 2 × a100-sxm4-80gb (81920 MiB) or 1 × t4 or 3 of several models."
	refused := func(body map[string]any, want string) {
		t.Helper()
		answer, text := b.do("POST", "/v1/sandboxes", body)
		if answer.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(string(text), want) {
			t.Errorf("%v: %d %s, want 422 with %q", body, answer.StatusCode, text, want)
		}
	}
	refused(map[string]any{"gpu": map[string]any{"count": 1}}, "No worker of this farm offers a GPU")
	b.gpuWorkers()
	refused(map[string]any{"gpu": map[string]any{"count": 4}}, "No worker offers 4 GPUs to one sandbox. One sandbox can have at most "+there)
	refused(map[string]any{"gpu": map[string]any{"count": 3, "model": "a100"}}, "No worker offers 3 × a100 to one sandbox. One sandbox can have at most "+there)
	refused(map[string]any{"gpu": map[string]any{"count": 1, "model": "H100"}}, "1 × h100")
	refused(map[string]any{"gpu": map[string]any{"count": 3}, "resources": map[string]any{"memory_mb": 8192}}, "8192 MiB and")
	refused(map[string]any{"gpu": map[string]any{"count": -1}}, "from 0 to 64")
	refused(map[string]any{"gpu": map[string]any{"count": 65}}, "from 0 to 64")
	refused(map[string]any{"gpu": map[string]any{"count": 64}}, "No worker offers 64 GPUs")
	refused(map[string]any{"gpu": map[string]any{"count": 1, "model": "??"}}, "is not a model")
	refused(map[string]any{"gpu": map[string]any{"count": 1, "model": strings.Repeat("a", 65)}}, "at most 64 are allowed")
	refused(map[string]any{"gpu": map[string]any{"count": 1, "model": strings.Repeat("a", 64)}}, "No worker offers")
	for _, name := range []string{"NVIDIA_VISIBLE_DEVICES", "LD_PRELOAD"} {
		refused(map[string]any{"gpu": map[string]any{"count": 1}, "env": map[string]any{name: "x"}}, "env."+name)
		refused(map[string]any{"gpu": map[string]any{"count": 1}, "secrets": map[string]any{name: map[string]any{"host": "a.example", "header": "X-A", "value": "12345678"}}}, "secrets."+name)
	}
	get[wire.Created](b, http.StatusAccepted, "POST", "/v1/sandboxes?wait=0", map[string]any{"gpu": map[string]any{"count": 1}, "env": map[string]any{"CUDA_VISIBLE_DEVICES": "0"}})
}

// A sandbox with a kernel of its own reaches no GPU: it is refused, whoever chose its runtime.
func TestGPUsWithARuntimeThatReachesNone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	device := []farm.GPUDevice{{ID: "GPU-1", Model: "t4"}}
	for _, w := range []farm.Worker{
		{ID: "wrk_a", Node: "n1", GPUs: device, Runtimes: []string{"runc", "runsc", "kata"}, Images: []farm.Image{{Name: "python", Runtime: "runc"}, {Name: "node", Runtime: "runsc"}}},
		{ID: "wrk_b", Node: "n2", GPUs: device, Runtimes: []string{"runsc"}, Images: []farm.Image{{Name: "python", Runtime: "runsc"}}},
	} {
		testbed.Must(t, b.store.Heartbeat(t.Context(), w))
	}
	for body, want := range map[string]string{
		`{"gpu": {"count": 1}}`:                                       "",
		`{"gpu": {"count": 1}, "runtime": "runc"}`:                    "",
		`{"gpu": {"count": 0}, "runtime": "runsc"}`:                   "",
		`{"gpu": {"count": 1}, "runtime": "runsc"}`:                   "the runtime runsc has a kernel of its own",
		`{"gpu": {"count": 1}, "runtime": "kata"}`:                    "the runtime kata has a kernel of its own",
		`{"gpu": {"count": 1}, "image": "node"}`:                      "the runtime runsc has a kernel of its own",
		`{"gpu": {"count": 1}, "image": "node", "runtime": "runc"}`:   "",
		`{"gpu": {"count": 2}, "image": "node", "runtime": "runsc"}`:  "No worker offers 2 GPUs",
		`{"gpu": {"count": 1}, "image": "other", "runtime": "runsc"}`: "other",
	} {
		if want == "" {
			get[wire.Created](b, http.StatusAccepted, "POST", "/v1/sandboxes?wait=0", body)
			continue
		}
		if p := b.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "POST", "/v1/sandboxes", body); len(p.Errors) != 1 || !strings.Contains(p.Errors[0].Detail, want) {
			t.Errorf("%s: %+v; want %q", body, p, want)
		}
	}
}

func TestGPUsAreShown(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.gpuWorkers()
	workers := get[wire.Items[wire.Worker]](b, http.StatusOK, "GET", "/v1/workers", nil).Items
	i := slices.IndexFunc(workers, func(w wire.Worker) bool { return w.ID == "wrk_a2" })
	if i < 0 || workers[i].GPUsLeased != 1 || len(workers[i].GPUs) != 3 || workers[i].GPUs[0] != (wire.GPUDevice{ID: "GPU-1", Model: "a100-sxm4-80gb", MemoryMB: 81920, Leased: true}) {
		t.Errorf("workers: %+v", workers)
	}
	got := map[string][2]int{}
	for _, q := range get[wire.Items[wire.Queue]](b, http.StatusOK, "GET", "/v1/queues", nil).Items {
		got[q.Name] = [2]int{q.GPUs, q.GPUsLeased}
	}
	want := map[string][2]int{
		"cpu": {}, "gpu": {4, 1}, "gpu-a100": {3, 1}, "gpu-a100-sxm4": {2, 1}, "gpu-a100-sxm4-80gb": {2, 1}, "gpu-a100-pcie": {1, 0},
		"gpu-a100-pcie-40gb": {1, 0}, "gpu-t4": {1, 0},
	}
	for name, n := range want {
		if got[name] != n {
			t.Errorf("queue %s has %v devices, leased; want %v", name, got[name], n)
		}
	}
	_, text := b.do("GET", "/metrics", nil)
	for _, line := range []string{`sandfarm_gpus{model="a100-sxm4-80gb"} 2`, `sandfarm_gpus_leased{model="a100-sxm4-80gb"} 1`, `sandfarm_queue_gpus_free{queue="gpu-a100"} 2`} {
		if !strings.Contains(string(text), line+"\n") {
			t.Errorf("the metrics lack %s", line)
		}
	}
}

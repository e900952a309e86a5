package api_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

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
		if err := b.store.Heartbeat(b.t.Context(), w); err != nil {
			b.t.Fatal(err)
		}
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
			if diff := cmp.Diff(c.want, made.Sandbox.GPU); diff != "" {
				t.Errorf("gpu of the sandbox (-want +got):\n%s", diff)
			}
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
		if err := b.store.Heartbeat(t.Context(), w); err != nil {
			t.Fatal(err)
		}
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

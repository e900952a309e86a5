package farm_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
)

func TestNormalGPUModel(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"NVIDIA A100-SXM4-80GB":   "a100-sxm4-80gb",
		"a100 sxm4 80gb":          "a100-sxm4-80gb",
		"Tesla T4":                "t4",
		"NVIDIA GeForce RTX 4090": "rtx-4090",
		"Quadro RTX 6000":         "rtx-6000",
		"NVIDIA H100 80GB HBM3":   "h100-80gb-hbm3",
		"GeForce":                 "geforce",
		" -- ":                    "",
		"H100 (MIG) 1g.10gb":      "h100-mig-1g-10gb",
	} {
		if got := farm.NormalGPUModel(name); got != want {
			t.Errorf("NormalGPUModel(%q) = %q, want %q", name, got, want)
		}
		if got := farm.NormalGPUModel(want); got != want {
			t.Errorf("the normal form %q becomes %q", want, got)
		}
	}
}

// A device serves exactly the queues of the requests that it can satisfy.
func TestGPUQueues(t *testing.T) {
	t.Parallel()
	device := farm.GPUDevice{Model: "a100-sxm4-80gb"}
	if diff := cmp.Diff([]string{"gpu", "gpu-a100", "gpu-a100-sxm4", "gpu-a100-sxm4-80gb"}, device.Queues()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"gpu"}, farm.GPUDevice{}.Queues()); diff != "" {
		t.Error(diff)
	}
	for _, queue := range device.Queues() {
		model, ok := farm.GPUQueue(queue)
		if !ok || !device.Is(model) || (&farm.GPU{Count: 1, Model: model}).Queue() != queue {
			t.Errorf("queue %s is for model %q", queue, model)
		}
	}
	for _, model := range []string{"a10", "a100-sxm", "h100", "a100-sxm4-80gb-x"} {
		if device.Is(model) {
			t.Errorf("an A100 is accepted as %s", model)
		}
	}
	for _, queue := range []string{"cpu", "control", "gpus", "node-1"} {
		if _, ok := farm.GPUQueue(queue); ok {
			t.Errorf("%s is accepted as a GPU queue", queue)
		}
	}
	for _, none := range []*farm.GPU{nil, {}, {Model: "a100"}} {
		if none.Wanted() || none.Queue() != farm.QueueCPU {
			t.Errorf("%+v goes to %s", none, none.Queue())
		}
	}
}

func TestLeasedGPUs(t *testing.T) {
	t.Parallel()
	if n := (farm.Worker{GPUs: []farm.GPUDevice{{ID: "0"}, {ID: "1", Leased: true}, {ID: "2", Leased: true}}}).LeasedGPUs(); n != 2 {
		t.Errorf("%d devices are leased, want 2", n)
	}
}

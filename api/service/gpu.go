package service

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sandfarm/sandfarm/api/strict"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// gpu returns the devices of a request; nil: none. Only here is the rule applied that a model without a count means one
// device.
func gpu(p *problems, r *wire.GPURequest) *farm.GPU {
	if r == nil {
		return nil
	}
	out := farm.GPU{Model: farm.NormalGPUModel(r.Model)}
	switch {
	case r.Count != nil:
		out.Count = between(p, "/gpu/count", r.Count, 0, 0, farm.MaxGPUs)
	case r.Model != "":
		out.Count = 1
	}
	if len(r.Model) > farm.MaxGPUModelBytes {
		p.addf("/gpu/model", "gpu.model has %d bytes; at most %d are allowed", len(r.Model), farm.MaxGPUModelBytes)
	} else if err := checkText("gpu.model", r.Model); err != nil {
		p.check("/gpu/model", err)
	} else if r.Model != "" && out.Model == "" {
		p.addf("/gpu/model", "gpu.model %q is not a model: give a name such as a100", farm.Shorten(r.Model))
	}
	if out.Count == 0 {
		return nil
	}
	return &out
}

// checkGPUEnv refuses variables that NVIDIA's runtime and the loader of its tools read before the sandbox is isolated.
func checkGPUEnv(p *problems, g *farm.GPU, env map[string]string) {
	if !g.Wanted() {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if farm.GPUEnv(name) {
			p.addf(strict.Pointer("/env", farm.Shorten(name)), "env.%s cannot be set for a sandbox with a GPU: it would reach the engine's GPU tools. Set it in the code.", farm.Shorten(name))
		}
	}
}

// checkGPUCapacity refuses a sandbox whose devices no live worker has: it would wait forever.
func (s *Service) checkGPUCapacity(ctx context.Context, spec *farm.SandboxSpec) error {
	if !spec.GPU.Wanted() {
		return nil
	}
	workers, err := s.Store.Workers(ctx)
	if err != nil {
		return err
	}
	devices, isolated := false, ""
	for _, w := range workers {
		n := 0
		for _, d := range w.GPUs {
			if d.Is(spec.GPU.Model) {
				n++
			}
		}
		if n < spec.GPU.Count {
			continue
		}
		devices = true
		if spec.Runtime != "" && !slices.Contains(w.Runtimes, spec.Runtime) {
			continue
		}
		image := slices.IndexFunc(w.Images, func(i farm.Image) bool { return i.Name == spec.Image })
		if image < 0 || w.Capacity != (farm.Capacity{}) && !spec.Resources.Capacity().Within(w.Largest()) {
			continue
		}
		runtime := cmp.Or(spec.Runtime, w.Images[image].Runtime)
		if !farm.OwnKernel(runtime) {
			return nil
		}
		isolated = runtime
	}
	if isolated != "" {
		return farm.Invalidf("A sandbox with the runtime %s has a kernel of its own, which does not reach GPUs: leave gpu out, or give a runtime that shares the host's kernel, such as runc.", isolated)
	}
	there := offeredGPUs(workers)
	switch {
	case there == "":
		return farm.Invalidf("No worker of this farm offers a GPU: leave gpu out.")
	case devices:
		return farm.Invalidf("No node has the requested GPUs together with image %q, %d MiB and %g cores%s. There are %s.",
			spec.Image, spec.Resources.MemoryMB, spec.Resources.CPUs, runtimeText(spec.Runtime), there)
	case spec.GPU.Model == "":
		return farm.Invalidf("No worker offers %d GPUs to one sandbox. There are %s.", spec.GPU.Count, there)
	default:
		return farm.Invalidf("No worker offers %d × %s to one sandbox. There are %s.", spec.GPU.Count, spec.GPU.Model, there)
	}
}

// offeredGPUs describes the devices of each node.
func offeredGPUs(workers []farm.Worker) string {
	var words []string
	for _, w := range eachNode(workers) {
		models := map[string]int{}
		for _, d := range w.GPUs {
			name := d.Model
			if d.MemoryMB > 0 {
				name += fmt.Sprintf(" (%d MiB)", d.MemoryMB)
			}
			models[name]++
		}
		for _, name := range slices.Sorted(maps.Keys(models)) {
			words = append(words, fmt.Sprintf("%d × %s on %s", models[name], name, w.Host))
		}
	}
	return strings.Join(words, ", ")
}

// eachNode returns one worker of each node, the one with the latest heartbeat: all workers of a node offer the same devices.
func eachNode(workers []farm.Worker) []farm.Worker {
	nodes := map[string]farm.Worker{}
	for _, w := range workers {
		if w.SeenAt.After(nodes[w.Node].SeenAt) || nodes[w.Node].ID == "" {
			nodes[w.Node] = w
		}
	}
	return slices.SortedFunc(maps.Values(nodes), func(a, b farm.Worker) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Node, b.Node))
	})
}

// gpuCount is the number of devices of a queue, and how many of them are leased.
type gpuCount struct{ all, leased int }

// gpuQueues counts the devices of each GPU queue.
func gpuQueues(workers []farm.Worker) map[string]gpuCount {
	out := map[string]gpuCount{}
	for _, w := range eachNode(workers) {
		for _, d := range w.GPUs {
			for _, name := range d.Queues() {
				n := out[name]
				n.all++
				if d.Leased {
					n.leased++
				}
				out[name] = n
			}
		}
	}
	return out
}

// FreeGPUs counts the free devices by the queue whose jobs may use them.
func FreeGPUs(workers []farm.Worker) map[string]int {
	out := map[string]int{}
	for queue, n := range gpuQueues(workers) {
		out[queue] = n.all - n.leased
	}
	return out
}

func gpusOf(devices []farm.GPUDevice) []wire.GPUDevice {
	out := make([]wire.GPUDevice, len(devices))
	for i, d := range devices {
		out[i] = wire.GPUDevice(d)
	}
	return out
}

// GPUModels counts the devices of each model, and how many of them are leased.
func GPUModels(workers []farm.Worker) (all, leased map[string]int) {
	all, leased = map[string]int{}, map[string]int{}
	for _, w := range eachNode(workers) {
		for _, d := range w.GPUs {
			all[d.Model]++
			if d.Leased {
				leased[d.Model]++
			}
		}
	}
	return all, leased
}

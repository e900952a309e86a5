package farm

import "strings"

// Bounds of requests for devices.
const (
	MaxGPUs          = 64 // devices of one sandbox; more than any host has
	MaxGPUModelBytes = 64
)

// GPUDevice is a GPU that a node offers to sandboxes, one sandbox at a time.
type GPUDevice struct {
	ID       string `json:"id"`        // the driver's, such as "GPU-8f1c…", or its index; unique on its node
	Model    string `json:"model"`     // normal form, see NormalGPUModel
	MemoryMB int    `json:"memory_mb"` // MiB on the device; 0: unknown
	Leased   bool   `json:"leased"`    // a sandbox has it
}

// QueueGPU is the queue of new sandboxes that need a GPU of any model.
const QueueGPU = "gpu"

// gpuQueuePrefix begins the names of queues for one model.
const gpuQueuePrefix = QueueGPU + "-"

// NormalGPUModel is a model's name in lower case with dashes, without the maker and its brands: "NVIDIA A100-SXM4-80GB"
// and "a100 sxm4 80gb" are both "a100-sxm4-80gb". It is "" for a text without letters and digits.
func NormalGPUModel(name string) string {
	words := strings.FieldsFunc(strings.ToLower(name), func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') })
	for len(words) > 1 {
		switch words[0] {
		case "nvidia", "tesla", "geforce", "quadro":
			words = words[1:]
			continue
		}
		break
	}
	return strings.Join(words, "-")
}

// GPUEnv reports whether an environment variable is read outside of a sandbox with a GPU, by NVIDIA's runtime or the loader of its tools. Callers
// cannot set such a variable beside a GPU.
func GPUEnv(name string) bool {
	return strings.HasPrefix(name, "NVIDIA_") || strings.HasPrefix(name, "LD_")
}

// Is reports whether the device matches a model: its whole name, or the beginning of it up to a dash. Every device matches "".
func (d GPUDevice) Is(model string) bool {
	return model == "" || d.Model == model || strings.HasPrefix(d.Model, model+"-")
}

// Queues names the queues whose sandboxes the device serves: one for any model, and one for each name that Is accepts.
func (d GPUDevice) Queues() []string {
	names := []string{QueueGPU}
	for i, r := range d.Model {
		if r == '-' {
			names = append(names, gpuQueuePrefix+d.Model[:i])
		}
	}
	if d.Model == "" {
		return names
	}
	return append(names, gpuQueuePrefix+d.Model)
}

// Wanted reports whether the request is for at least one device; nil is for none.
func (g *GPU) Wanted() bool { return g != nil && g.Count > 0 }

// Queue is the queue of a create with this request.
func (g *GPU) Queue() string {
	switch {
	case !g.Wanted():
		return QueueCPU
	case g.Model == "":
		return QueueGPU
	default:
		return gpuQueuePrefix + g.Model
	}
}

// GPUQueue returns the model of a GPU queue, "" for any model. ok reports whether it is a GPU queue.
func GPUQueue(queue string) (model string, ok bool) {
	if queue == QueueGPU {
		return "", true
	}
	return strings.CutPrefix(queue, gpuQueuePrefix)
}

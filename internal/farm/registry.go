package farm

import (
	"strings"
	"time"
)

// Image is a sandbox image that a node offers.
type Image struct {
	Name        string    `json:"name"`
	Ref         string    `json:"ref"`          // its name in the engine
	ID          string    `json:"id,omitempty"` // of its content: another build has another one
	Digests     []string  `json:"-"`            // of its content in registries, such as "sha256:…"; empty: it is from none
	Volumes     []string  `json:"-"`            // directories that are volumes in each of its containers, without a limit: sandboxes may not have it
	Description string    `json:"description,omitempty"`
	Languages   []string  `json:"languages"`
	Size        int64     `json:"size"`
	CreatedAt   time.Time `json:"created_at"`
	Runtime     string    `json:"runtime,omitempty"` // of its sandboxes on this node that ask for none; empty: not known
}

// Worker is the registration of a worker process. Every heartbeat renews it, and it expires without them.
type Worker struct {
	ID        string      `json:"id"`
	Node      string      `json:"node"` // the Docker engine that it uses
	Host      string      `json:"host"`
	Version   string      `json:"version"`
	Queues    []string    `json:"queues"`
	Images    []Image     `json:"images"`
	Slots     int         `json:"slots"`   // jobs of one tenant at once
	Running   int         `json:"running"` // jobs of all tenants now
	Sandboxes int         `json:"sandboxes"`
	StartedAt time.Time   `json:"started_at"`
	SeenAt    time.Time   `json:"seen_at"`
	Capacity  Capacity    `json:"capacity"`           // of its node, for sandboxes; zero: unknown
	Reserved  Capacity    `json:"promised"`           // of that, for the sandboxes of its node
	LargestMB int         `json:"largest_mb"`         // memory that one sandbox of its node may have: what the host has for sandboxes, without overcommit; 0: unknown
	Machine   *Machine    `json:"machine,omitempty"`  // its node's host; nil: its use is not known, since the engine runs elsewhere
	Pool      []PoolStock `json:"pool,omitempty"`     // of its node
	Problem   string      `json:"problem,omitempty"`  // why it accepts no jobs now, in a sentence; empty if it does
	Draining  bool        `json:"draining,omitempty"` // its node is drained: it takes no new sandboxes, and its capacity is zero

	GPUs []GPUDevice `json:"gpus,omitempty"` // devices of its node that it offers to sandboxes
	// Runtimes are the OCI runtimes that sandboxes may have on its node, the default first. Nil: the worker is of a release that starts every
	// sandbox with its default.
	Runtimes []string `json:"runtimes,omitempty"`
	// Hibernates are those of Runtimes whose sandboxes can hibernate on its node.
	Hibernates []string `json:"hibernates,omitempty"`

	// Live is where the API reaches the worker for interactive streams, as host:port; empty: it does not listen, or is of a release that cannot.
	Live string `json:"live,omitempty"`

	Beat uint64 `json:"beat,omitempty"` // number of the heartbeat, from 1; 0: the worker is of a release that counts none
	// Jobs are the jobs that the worker runs or is about to claim, with their attempts (0: not claimed yet), as of the heartbeat. Nil: the
	// worker is of a release that does not list them.
	Jobs map[string]int `json:"holds"`
	// Waiting are those of Jobs that wait for one of its slots, by the queues from which it took them.
	Waiting map[string]WaitingJobs `json:"waiting,omitempty"`
}

// WaitingJobs are some jobs that wait.
type WaitingJobs struct {
	Jobs  int       `json:"jobs"`
	Since time.Time `json:"since"` // of the one that waits for longest; zero: not known
}

// And adds other jobs.
func (w WaitingJobs) And(other WaitingJobs) WaitingJobs {
	if w.Since.IsZero() || !other.Since.IsZero() && other.Since.Before(w.Since) {
		w.Since = other.Since
	}
	w.Jobs += other.Jobs
	return w
}

// Machine is the host of a node, and what all of its programs use.
type Machine struct {
	MemoryMB int     `json:"memory_mb"`
	UsedMB   int     `json:"used_mb"` // what is not available to programs
	CPUs     float64 `json:"cpus"`
	Load     float64 `json:"load"` // programs that run or wait for a core, a mean over a minute
}

// Largest is the largest sandbox that its node can have; zero: unknown. Overcommit is for the sum of many sandboxes: none can be
// larger than the host. One that asks for more cores than its host has gets those, and reserves as many.
func (w Worker) Largest() Capacity {
	c := w.Capacity
	if w.LargestMB > 0 {
		c.MemoryMB = min(c.MemoryMB, w.LargestMB)
	}
	return c
}

// LeasedGPUs counts the devices that are leased to sandboxes.
func (w Worker) LeasedGPUs() (n int) {
	for _, d := range w.GPUs {
		if d.Leased {
			n++
		}
	}
	return n
}

// PoolStock counts the pool members of an image and a runtime.
type PoolStock struct {
	Image   string `json:"image"`
	Runtime string `json:"runtime,omitempty"` // empty: what sandboxes of the image have that ask for none
	Target  int    `json:"target"`            // wanted, by the settings of the worker that reports it
	Ready   int    `json:"ready"`             // waiting for a create, on the whole node
}

// QueueCallbacks is the queue of the callbacks of jobs that have ended.
const QueueCallbacks = "callbacks"

// QueueCPU is the queue of creates without a GPU. Jobs of existing sandboxes use the queue of their node.
const QueueCPU = "cpu"

// QueueControl is the queue of jobs that end sandboxes without a node. Its gate is never paused.
const QueueControl = "control"

// NodeQueue is the queue of all jobs for sandboxes of a node.
func NodeQueue(node string) string { return "node-" + node }

// QueueDepth is the backlog of a queue.
type QueueDepth struct {
	Name    string `json:"name"`
	Depth   int    `json:"depth"` // waiting
	Running int    `json:"running"`
	// OldestSeconds is how long the next job has waited, parked or in the queue; 0 if none waits.
	OldestSeconds float64 `json:"oldest_seconds"`
}

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

package scale

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Kind is a kind of node: those without GPUs, or those whose GPUs are of a model.
type Kind struct {
	GPU   bool
	Model string // normal form; of the most devices of the node; "" without GPUs, or if the model is not known
}

// Node is a node with a live worker.
type Node struct {
	ID       string
	Kind     Kind
	Queues   []string // of creates that it takes
	Images   []string
	Runtimes []string
	Capacity farm.Capacity // zero: not measured yet, or drained
	Largest  farm.Capacity // of one sandbox
	Reserved farm.Capacity // without the idle members of the warm pool, which give way to creates
	Slots    int
	Running  int // jobs
	GPUs     []farm.GPUDevice
	Draining bool
	Failing  bool // its workers accept no jobs
	Used     bool // it has open sandboxes, hibernated ones too
	// PoolMissing are the members of the warm pool that the node wants and has not.
	PoolMissing int
}

// inService reports whether the node takes new sandboxes.
func (n Node) inService() bool { return !n.Draining && !n.Failing }

// Idle reports whether nothing is lost if the node is removed.
func (n Node) Idle() bool {
	leased := slices.ContainsFunc(n.GPUs, func(d farm.GPUDevice) bool { return d.Leased })
	return n.inService() && !n.Used && n.Running == 0 && !leased && n.Reserved == farm.Capacity{}
}

// Create is a sandbox that waits for a node.
type Create struct {
	Queue   string
	Image   string
	Runtime string // "": the default of its node
	Size    farm.Capacity
	GPU     *farm.GPU
	OneShot bool // its run keeps a slot of the worker until it ends
	Since   time.Time
}

// Snapshot is what Plan looks at.
type Snapshot struct {
	Nodes   []Node
	Waiting []Create
	// More are the creates of each queue that wait beside those of Waiting. They are taken to be like those.
	More map[string]int
	Now  time.Time
}

// NodesOf makes nodes of the live workers. member is what an idle member of the warm pool reserves.
func NodesOf(workers []farm.Worker, member farm.Capacity) []Node {
	nodes, seen, well := map[string]Node{}, map[string]time.Time{}, map[string]bool{}
	for _, w := range workers {
		n := nodes[w.Node]
		n.Slots, n.Running = n.Slots+w.Slots, n.Running+w.Running
		well[w.Node] = well[w.Node] || w.Problem == ""
		for _, q := range w.Queues {
			if _, gpu := farm.GPUQueue(q); (gpu || q == farm.QueueCPU) && !slices.Contains(n.Queues, q) {
				n.Queues = append(n.Queues, q)
			}
		}
		if n.ID == "" || w.SeenAt.After(seen[w.Node]) { // all workers of a node report the same; the latest knows best
			seen[w.Node] = w.SeenAt
			n.ID, n.Kind, n.GPUs, n.Runtimes, n.Draining = w.Node, kindOf(w.GPUs), w.GPUs, w.Runtimes, w.Draining
			n.Capacity, n.Largest, n.Images, n.PoolMissing = w.Capacity, w.Largest(), make([]string, len(w.Images)), 0
			for i, image := range w.Images {
				n.Images[i] = image.Name
			}
			pooled := farm.Capacity{}
			for _, p := range w.Pool {
				pooled = pooled.Plus(farm.Capacity{MemoryMB: p.Ready * member.MemoryMB, CPUs: float64(p.Ready) * member.CPUs})
				n.PoolMissing += max(p.Target-p.Ready, 0)
			}
			if n.Reserved = w.Reserved.Minus(pooled); n.Reserved.Millicores() == 0 {
				n.Reserved.CPUs = 0
			}
		}
		nodes[w.Node] = n
	}
	out := make([]Node, 0, len(nodes))
	for _, id := range slices.Sorted(maps.Keys(nodes)) {
		n := nodes[id]
		n.Failing = !well[id]
		out = append(out, n)
	}
	return out
}

// kindOf is the kind of a node with some devices.
func kindOf(devices []farm.GPUDevice) Kind {
	if len(devices) == 0 {
		return Kind{}
	}
	counts := map[string]int{}
	for _, d := range devices {
		counts[d.Model]++
	}
	models := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(-cmp.Compare(counts[a], counts[b]), cmp.Compare(a, b))
	})
	return Kind{GPU: true, Model: models[0]}
}

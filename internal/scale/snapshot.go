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

// room is what is free on a node: one that exists, or one that would be added.
type room struct {
	node   *Node
	memory int // MiB
	milli  int // thousandths of a core
	slots  int
	gpus   []farm.GPUDevice
	placed int
	copies int // nodes that would be added and are alike; 1 of a node that exists
}

// roomOf is what a node has free; empty: as if nothing were on it.
func roomOf(n *Node, empty bool) *room {
	r := &room{node: n, memory: n.Capacity.MemoryMB, milli: n.Capacity.Millicores(), slots: n.Slots, copies: 1}
	if !empty {
		r.memory, r.milli, r.slots = r.memory-n.Reserved.MemoryMB, r.milli-n.Reserved.Millicores(), r.slots-n.Running
	}
	for _, d := range n.GPUs {
		if empty || !d.Leased {
			r.gpus = append(r.gpus, d)
		}
	}
	return r
}

// fits counts how many creates of a group the room takes, at most those of the group.
func (r *room) fits(g *group) int {
	n := r.node
	if r.slots < 1 || r.memory < g.memory || r.milli < g.milli || len(r.gpus) < g.gpus {
		return 0
	}
	if !slices.Contains(n.Queues, g.queue) || !slices.Contains(n.Images, g.image) || g.runtime != "" && !slices.Contains(n.Runtimes, g.runtime) {
		return 0
	}
	if !(farm.Capacity{MemoryMB: g.memory, CPUs: float64(g.milli) / 1000}).Within(n.Largest) {
		return 0
	}
	limit := g.count
	if g.memory > 0 {
		limit = min(limit, r.memory/g.memory)
	}
	if g.milli > 0 {
		limit = min(limit, r.milli/g.milli)
	}
	if g.gpus > 0 {
		free := 0
		for _, d := range r.gpus {
			if d.Is(g.model) {
				free++
			}
		}
		limit = min(limit, free/g.gpus)
	}
	if g.oneShot {
		limit = min(limit, r.slots) // other creates need a slot only while they start
	}
	return max(limit, 0)
}

// take places up to all creates of a group, and reports how many.
func (r *room) take(g *group) int {
	k := r.fits(g)
	r.placed += k
	r.memory, r.milli = r.memory-k*g.memory, r.milli-k*g.milli
	if g.oneShot {
		r.slots -= k
	}
	devices := k * g.gpus
	r.gpus = slices.DeleteFunc(slices.Clone(r.gpus), func(d farm.GPUDevice) bool {
		if devices == 0 || !d.Is(g.model) {
			return false
		}
		devices--
		return true
	})
	return k
}

// but is r with other copies.
func (r *room) but(copies int) *room {
	out := *r
	out.copies = copies
	return &out
}

// spread places creates of a group into the copies of a room of nodes that would be added. It reduces the group by them, and returns the room as it is
// then: the copies that took most, the one that took the rest, and those that took none.
func (r *room) spread(g *group) []*room {
	each := r.fits(g)
	if each == 0 {
		return []*room{r}
	}
	var out []*room
	take := func(copies, count int) {
		part, got := r.but(copies), *g
		got.count = count
		part.take(&got)
		g.count -= copies * count
		out = append(out, part)
	}
	full := min(r.copies, g.count/each)
	left := r.copies - full
	if full > 0 {
		take(full, each)
	}
	if left > 0 && g.count > 0 {
		take(1, g.count)
		left--
	}
	if left > 0 {
		out = append(out, r.but(left))
	}
	return out
}

// group are equal creates.
type group struct {
	shape
	count int
}

// shape is what matters of a create for where it fits.
type shape struct {
	queue, image, runtime string
	memory, milli         int
	gpus                  int
	model                 string
	oneShot               bool
}

func shapeOf(c Create) shape {
	s := shape{queue: c.Queue, image: c.Image, runtime: c.Runtime, memory: c.Size.MemoryMB, milli: c.Size.Millicores(), oneShot: c.OneShot}
	if c.GPU.Wanted() {
		s.gpus, s.model = c.GPU.Count, c.GPU.Model
	}
	return s
}

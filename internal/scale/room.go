package scale

import (
	"slices"

	"github.com/sandfarm/sandfarm/internal/farm"
)

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
	most := g.count
	if g.memory > 0 {
		most = min(most, r.memory/g.memory)
	}
	if g.milli > 0 {
		most = min(most, r.milli/g.milli)
	}
	if g.gpus > 0 {
		free := 0
		for _, d := range r.gpus {
			if d.Is(g.model) {
				free++
			}
		}
		most = min(most, free/g.gpus)
	}
	if g.oneShot {
		most = min(most, r.slots) // other creates need a slot only while they start
	}
	return max(most, 0)
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

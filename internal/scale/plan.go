// Package scale says how many nodes a farm needs for the creates that wait. Plan is a pure function of a snapshot of the farm: it places what
// waits into the room that the nodes have, and counts the nodes of each kind that would hold the rest. It adds and removes no node: an
// autoscaler or an operator does.
package scale

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Need is how many nodes of a kind the farm needs, and why.
type Need struct {
	Kind     Kind
	Nodes    int // that take new sandboxes
	Draining int
	Failing  int // whose workers accept no jobs
	// Wanted nodes would take everything that waits. It is below Nodes by those that are idle, and never 0 where the kind has a node in
	// service: a farm refuses what no node offers.
	Wanted int
	Idle   []string // nodes that could be removed: nothing is on them, and nothing that waits needs them

	Waiting   int // creates
	Oldest    time.Duration
	Room      farm.Capacity // that they ask for
	GPUs      int           // that they ask for
	Placeable int           // of them, those that fit into nodes that exist: they start soon
	Unfit     int           // of them, those that no node of the kind could hold even if it were empty: more of them do not help

	Capacity    farm.Capacity // of the nodes in service
	Reserved    farm.Capacity // of that, without the idle members of the warm pool
	PoolMissing int           // members of the warm pool that the nodes want and have not; they do not count as waiting
}

// plan is a Plan in the making.
type plan struct {
	nodes []Node
	rooms []*room // of nodes in service: those in use before idle ones
	added []*room // of nodes that would be added and have room left
	needs map[Kind]*Need
	more  map[Kind]int // nodes that would be added
}

// Plan says for each kind of node how many the farm needs: nodes without GPUs first, then those with GPUs by model. Creates go to the nodes
// in use, then to idle ones, and then to new ones, each like the largest of its kind that could hold the create. Nodes differ little
// within a kind as a rule; where they do, the plan may be too small, and a later one corrects it.
func Plan(s Snapshot) []Need {
	p := &plan{nodes: s.Nodes, needs: map[Kind]*Need{}, more: map[Kind]int{}}
	p.need(Kind{})
	for i := range s.Nodes {
		p.count(&s.Nodes[i])
	}
	slices.SortStableFunc(p.rooms, func(a, b *room) int {
		return cmp.Or(order(a.node.Idle(), b.node.Idle()), order(a.node.Kind.GPU, b.node.Kind.GPU), cmp.Compare(a.node.ID, b.node.ID))
	})
	oldest := map[shape]time.Time{}
	for _, c := range s.Waiting {
		if at := shapeOf(c); oldest[at].IsZero() || c.Since.Before(oldest[at]) {
			oldest[at] = c.Since
		}
	}
	for _, g := range groupsOf(s) {
		p.place(g, s.Now.Sub(oldest[g.shape]))
	}
	return p.finish()
}

// order puts false before true.
func order(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	default:
		return 1
	}
}

func (p *plan) need(k Kind) *Need {
	if p.needs[k] == nil {
		p.needs[k] = &Need{Kind: k}
	}
	return p.needs[k]
}

// count adds a node to what its kind has.
func (p *plan) count(n *Node) {
	need := p.need(n.Kind)
	switch {
	case n.Draining:
		need.Draining++
		return
	case n.Failing:
		need.Failing++
		return
	}
	need.Nodes++
	need.Capacity, need.Reserved = need.Capacity.Plus(n.Capacity), need.Reserved.Plus(n.Reserved)
	need.PoolMissing += n.PoolMissing
	p.rooms = append(p.rooms, roomOf(n, false))
}

// groupsOf puts equal creates together, the largest first, and spreads those that were not read over the groups of their queue.
func groupsOf(s Snapshot) []*group {
	counts, read := map[shape]int{}, map[string]int{}
	for _, c := range s.Waiting {
		counts[shapeOf(c)]++
		read[c.Queue]++
	}
	groups := make([]*group, 0, len(counts))
	for at, n := range counts {
		groups = append(groups, &group{shape: at, count: n})
	}
	slices.SortFunc(groups, func(a, b *group) int {
		return cmp.Or(
			-cmp.Compare(a.gpus, b.gpus), -cmp.Compare(a.memory, b.memory), -cmp.Compare(a.milli, b.milli), cmp.Compare(a.queue, b.queue),
			cmp.Compare(a.image, b.image), cmp.Compare(a.runtime, b.runtime), cmp.Compare(a.model, b.model), order(a.oneShot, b.oneShot),
		)
	})
	passed, given := map[string]int{}, map[string]int{}
	for _, g := range groups {
		q := g.queue
		passed[q] += g.count
		until := s.More[q] * passed[q] / read[q]
		g.count += until - given[q]
		given[q] = until
	}
	return groups
}

// place finds nodes for a group.
func (p *plan) place(g *group, age time.Duration) {
	kind, example := p.home(g)
	need := p.need(kind)
	need.Waiting += g.count
	need.Oldest = max(need.Oldest, age)
	need.Room = need.Room.Plus(farm.Capacity{MemoryMB: g.count * g.memory, CPUs: float64(g.count) * float64(g.milli) / 1000})
	need.GPUs += g.count * g.gpus
	left := *g
	for _, r := range p.rooms {
		k := r.take(&left)
		left.count -= k
		need.Placeable += k
	}
	var added []*room
	for _, r := range p.added {
		added = append(added, r.spread(&left)...)
	}
	p.added = added
	if left.count == 0 {
		return
	}
	if example == nil {
		if need.Nodes+need.Failing > 0 {
			need.Unfit += left.count
		} else {
			p.more[kind] = max(p.more[kind], 1) // how much a node holds is not known before there is one
		}
		return
	}
	empty := roomOf(example, true)
	each := empty.fits(&left)
	nodes := (left.count + each - 1) / each
	p.more[kind] += nodes
	p.added = append(p.added, empty.but(nodes).spread(&left)...)
}

// home is the kind of node that a group waits for, and the largest node of it that could hold one of the group if it were empty; nil: none
// could, or none is known. Groups without GPUs wait for nodes without GPUs if one could hold them; groups with GPUs for the kind of which the
// farm has most nodes that could.
func (p *plan) home(g *group) (Kind, *Node) {
	one := *g
	one.count = 1
	largest, able := map[Kind]*Node{}, map[Kind]int{}
	for i := range p.nodes {
		n := &p.nodes[i]
		if n.Draining || roomOf(n, true).fits(&one) == 0 {
			continue
		}
		able[n.Kind]++
		if l := largest[n.Kind]; l == nil || larger(n, l) {
			largest[n.Kind] = n
		}
	}
	if len(able) == 0 {
		return p.homeless(g), nil
	}
	kinds := slices.SortedFunc(maps.Keys(able), func(a, b Kind) int {
		return cmp.Or(order(a.GPU, b.GPU), -cmp.Compare(able[a], able[b]), cmp.Compare(a.Model, b.Model))
	})
	return kinds[0], largest[kinds[0]]
}

// homeless is the kind that a group waits for which no node could hold.
func (p *plan) homeless(g *group) Kind {
	if g.gpus == 0 {
		return Kind{}
	}
	for _, k := range slices.SortedFunc(maps.Keys(p.needs), byKind) {
		if k.GPU && (farm.GPUDevice{Model: k.Model}).Is(g.model) {
			return k
		}
	}
	return Kind{GPU: true, Model: g.model}
}

func larger(a, b *Node) bool {
	return cmp.Or(cmp.Compare(len(a.GPUs), len(b.GPUs)), cmp.Compare(a.Capacity.MemoryMB, b.Capacity.MemoryMB), cmp.Compare(a.Capacity.CPUs, b.Capacity.CPUs)) > 0
}

func byKind(a, b Kind) int { return cmp.Or(order(a.GPU, b.GPU), cmp.Compare(a.Model, b.Model)) }

// finish counts the nodes that are wanted.
func (p *plan) finish() []Need {
	for _, r := range p.rooms {
		if r.node.Idle() && r.placed == 0 {
			need := p.need(r.node.Kind)
			need.Idle = append(need.Idle, r.node.ID)
		}
	}
	out := make([]Need, 0, len(p.needs))
	for _, k := range slices.SortedFunc(maps.Keys(p.needs), byKind) {
		need := *p.needs[k]
		if need.Nodes > 0 && len(need.Idle) == need.Nodes && p.more[k] == 0 {
			need.Idle = need.Idle[1:] // the last node of a kind stays
		}
		need.Wanted = need.Nodes - len(need.Idle) + p.more[k]
		out = append(out, need)
	}
	return out
}

// Obstacle is why no node takes a create now.
type Obstacle string

// The obstacles. Each is true of the nodes to which those before it do not apply, of which there are some.
const (
	NoObstacle Obstacle = ""              // none is known
	NoWorker   Obstacle = "no_worker"     // there is no live worker
	NoModel    Obstacle = "no_gpu_model"  // none serves its queue, which is that of its GPU model
	NoImage    Obstacle = "no_image"      // none offers its image
	NoRuntime  Obstacle = "no_runtime"    // none offers its runtime
	Draining   Obstacle = "drain"         // those that could take it are drained
	Failing    Obstacle = "worker_failed" // the workers of those that could take it accept no jobs
	TooLarge   Obstacle = "too_large"     // it is larger than any of them
	NoRoom     Obstacle = "no_room"       // none has its memory and cores free
	NoGPU      Obstacle = "no_gpu"        // none has its GPUs free
	Busy       Obstacle = "busy"          // all slots of their workers are taken
)

// Obstacles lists them in order, without NoObstacle.
func Obstacles() []Obstacle {
	return []Obstacle{NoWorker, NoModel, NoImage, NoRuntime, Draining, Failing, TooLarge, NoRoom, NoGPU, Busy}
}

// ObstacleOf is the first obstacle of a create. A node whose capacity is not measured yet is taken to have room.
func ObstacleOf(nodes []Node, c Create) Obstacle {
	g := group{shape: shapeOf(c), count: 1}
	free := func(n Node) int {
		count := 0
		for _, d := range n.GPUs {
			if d.Is(g.model) && !d.Leased {
				count++
			}
		}
		return count
	}
	unmeasured := func(n Node) bool { return n.Capacity == farm.Capacity{} }
	may := map[Obstacle]func(Node) bool{
		NoWorker:  func(Node) bool { return true },
		NoModel:   func(n Node) bool { return slices.Contains(n.Queues, g.queue) },
		NoImage:   func(n Node) bool { return slices.Contains(n.Images, g.image) },
		NoRuntime: func(n Node) bool { return g.runtime == "" || slices.Contains(n.Runtimes, g.runtime) },
		Draining:  func(n Node) bool { return !n.Draining },
		Failing:   func(n Node) bool { return !n.Failing },
		TooLarge:  func(n Node) bool { return unmeasured(n) || c.Size.Within(n.Largest) && len(n.GPUs) >= g.gpus },
		NoRoom:    func(n Node) bool { return unmeasured(n) || n.Reserved.Plus(c.Size).Within(n.Capacity) },
		NoGPU:     func(n Node) bool { return free(n) >= g.gpus },
		Busy:      func(n Node) bool { return n.Running < n.Slots },
	}
	left := slices.Clone(nodes)
	for _, o := range Obstacles() {
		if left = slices.DeleteFunc(left, func(n Node) bool { return !may[o](n) }); len(left) == 0 {
			return o
		}
	}
	return NoObstacle
}

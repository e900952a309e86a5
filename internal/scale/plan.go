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

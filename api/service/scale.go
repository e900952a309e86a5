package service

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/scale"
)

// Bounds of the scale signal.
const (
	// ScaleAfter is how long a create must have waited to count: what a burst needs is often free again before a node could be added.
	ScaleAfter = 5 * time.Second
	scaleTTL   = 2 * time.Second // how long the answer is remembered, so that autoscalers and scrapes cost little
	// scaleMost bounds how many creates of a queue are read. Those beyond it count as if they were like these.
	scaleMost = 1000
	scaleIDs  = 100 // ids of idle nodes that are named
)

// needs remembers what Needs has found. One caller asks at a time.
type needs struct {
	mu   sync.Mutex
	last []scale.Need
	asOf time.Time
}

// Scale says how many nodes of each kind the farm needs.
func (s *Service) Scale(ctx context.Context) (wire.Items[wire.NodeNeed], error) {
	found, err := s.Needs(ctx)
	if err != nil {
		return wire.Items[wire.NodeNeed]{}, err
	}
	list := wire.Items[wire.NodeNeed]{Items: make([]wire.NodeNeed, len(found))}
	for i, n := range found {
		list.Items[i] = wire.NodeNeed{
			Kind: KindName(n.Kind), Model: n.Kind.Model, Nodes: n.Nodes, Wanted: n.Wanted, IdleNodes: len(n.Idle),
			Idle: emptyIfNil(n.Idle[:min(len(n.Idle), scaleIDs)]), Draining: n.Draining, Failing: n.Failing,
			Waiting: n.Waiting, OldestSeconds: n.Oldest.Seconds(), Asked: wire.Room(n.Room), AskedGPUs: n.GPUs, Placeable: n.Placeable, Unfit: n.Unfit,
			Capacity: wire.Room(n.Capacity), Promised: wire.Room(n.Reserved), PoolMissing: n.PoolMissing,
		}
	}
	return list, nil
}

// KindName is the public name of a kind of node, without the model.
func KindName(k scale.Kind) string {
	if k.GPU {
		return "gpu"
	}
	return "cpu"
}

// Needs says how many nodes of each kind the farm needs. The answer is up to 2 seconds old.
func (s *Service) Needs(ctx context.Context) ([]scale.Need, error) {
	s.needs.mu.Lock()
	defer s.needs.mu.Unlock()
	now := s.Now()
	if age := now.Sub(s.needs.asOf); s.needs.last != nil && age >= 0 && age < scaleTTL {
		return s.needs.last, nil
	}
	snapshot, err := s.scaleSnapshot(ctx, now)
	if err != nil {
		return nil, err
	}
	s.needs.last, s.needs.asOf = scale.Plan(snapshot), now
	return s.needs.last, nil
}

// poolMember is what an idle member of the warm pool reserves.
func (s *Service) poolMember() farm.Capacity {
	return farm.Capacity{MemoryMB: s.limits.Memory.Default, CPUs: s.limits.CPUs.Default}
}

// scaleSnapshot reads the workers, the depths of the queues, the creates of queues that have some, and what is on nodes that seem idle.
func (s *Service) scaleSnapshot(ctx context.Context, now time.Time) (scale.Snapshot, error) {
	workers, err := s.Store.Workers(ctx)
	if err != nil {
		return scale.Snapshot{}, err
	}
	out := scale.Snapshot{Nodes: scale.NodesOf(workers, s.poolMember()), More: map[string]int{}, Now: now}
	var idle []string
	for _, n := range out.Nodes {
		if n.Idle() {
			idle = append(idle, n.ID)
		}
	}
	open, err := s.Store.CountOpenOn(ctx, idle...)
	if err != nil {
		return scale.Snapshot{}, err
	}
	for i := range out.Nodes {
		out.Nodes[i].Used = open[out.Nodes[i].ID] > 0
	}
	depths, err := s.Deps.Queues.Depths(ctx)
	if err != nil {
		return scale.Snapshot{}, err
	}
	for _, q := range depths {
		if _, gpu := farm.GPUQueue(q.Name); !gpu && q.Name != farm.QueueCPU || q.Depth == 0 {
			continue
		}
		waiting, err := s.Store.WaitingCreates(ctx, q.Name, now.Add(-ScaleAfter), scaleMost)
		if err != nil {
			return scale.Snapshot{}, err
		}
		out.More[q.Name] = waiting.More
		out.Waiting = slices.Grow(out.Waiting, len(waiting.Sandboxes))
		for _, box := range waiting.Sandboxes {
			create := createOf(q.Name, &box.Spec, box.OneShot)
			create.Since = box.CreatedAt
			out.Waiting = append(out.Waiting, create)
		}
	}
	return out, nil
}

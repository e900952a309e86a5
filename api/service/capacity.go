package service

import (
	"context"
	"sync"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// nodes caches what is known of the nodes with a live worker.
type nodes struct {
	mu      sync.Mutex
	largest map[string]farm.Capacity
	pooled  map[string]bool // images that have a warm pool on some node
	silent  map[string]bool // whose engine does not answer
	asked   int64           // in nanoseconds
}

// largest returns the largest sandbox of each known node. It is cached as long as the list of images.
func (s *Service) largest(ctx context.Context, fresh bool) (map[string]farm.Capacity, error) {
	s.nodes.mu.Lock()
	defer s.nodes.mu.Unlock()
	now := s.Now().UnixNano()
	if !fresh && now-s.nodes.asked < int64(offeredFor) {
		return s.nodes.largest, nil
	}
	workers, err := s.Store.Workers(ctx)
	if err != nil {
		return nil, err
	}
	s.nodes.largest, s.nodes.pooled, s.nodes.silent, s.nodes.asked = map[string]farm.Capacity{}, map[string]bool{}, map[string]bool{}, now
	for _, w := range workers {
		if w.Capacity != (farm.Capacity{}) {
			s.nodes.largest[w.Node] = w.Largest()
		}
		s.nodes.silent[w.Node] = s.nodes.silent[w.Node] || w.Problem != ""
		for _, p := range w.Pool {
			s.nodes.pooled[p.Image] = s.nodes.pooled[p.Image] || p.Target > 0 || p.Ready > 0
		}
	}
	return s.nodes.largest, nil
}

// checkCapacity refuses a sandbox that is larger than every node: it would wait forever. If no node is known, it may wait.
func (s *Service) checkCapacity(ctx context.Context, r farm.Resources) error {
	var largest farm.Capacity
	for _, fresh := range []bool{false, true} {
		nodes, err := s.largest(ctx, fresh)
		if err != nil || len(nodes) == 0 {
			return err
		}
		largest = farm.Capacity{}
		for _, capacity := range nodes {
			if r.Capacity().Within(capacity) {
				return nil
			}
			if capacity.MemoryMB > largest.MemoryMB || capacity.MemoryMB == largest.MemoryMB && capacity.CPUs > largest.CPUs {
				largest = capacity
			}
		}
	}
	return farm.Invalidf("A sandbox of %d MiB and %g cores is larger than any node: the largest has %d MiB and %g cores for sandboxes. Ask for less in resources.",
		r.MemoryMB, r.CPUs, largest.MemoryMB, largest.CPUs)
}

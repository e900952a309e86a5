package service

import (
	"context"
	"slices"
	"sync"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/scale"
)

// nodes caches what is known of the nodes with a live worker.
type nodes struct {
	mu    sync.Mutex
	last  nodeFacts
	asked int64 // in nanoseconds
}

// nodeFacts are what the live workers say of their nodes. They do not change once read.
type nodeFacts struct {
	largest    map[string]farm.Capacity // the largest sandbox of each node that is measured
	runtimes   map[string][]string      // OCI runtimes that each node offers; nil: a worker of it is of a release that offers none
	hibernates map[string][]string      // those of runtimes whose sandboxes can hibernate
	defaults   map[imageOnNode]string   // runtime of sandboxes of an image that ask for none
	pooled     map[poolKey]bool         // what has a warm pool on some node
	silent     map[string]bool          // whose engine does not answer, or that are drained
	scale      []scale.Node
}

type imageOnNode struct{ image, node string }

// poolKey distinguishes the members of a pool; Runtime is empty for the default of the image.
type poolKey struct{ image, runtime string }

// offers reports whether a node can start a sandbox with a runtime; "" is its default.
func (n nodeFacts) offers(node, runtime string) bool {
	return runtime == "" || slices.Contains(n.runtimes[node], runtime)
}

// readNodes returns what is known of the nodes. It is cached as long as the list of images.
func (s *Service) readNodes(ctx context.Context, fresh bool) (nodeFacts, error) {
	s.nodes.mu.Lock()
	defer s.nodes.mu.Unlock()
	now := s.Now().UnixNano()
	if !fresh && now-s.nodes.asked < int64(offeredFor) {
		return s.nodes.last, nil
	}
	workers, err := s.Store.Workers(ctx)
	if err != nil {
		return nodeFacts{}, err
	}
	facts := nodeFacts{
		largest: map[string]farm.Capacity{}, runtimes: map[string][]string{}, defaults: map[imageOnNode]string{}, pooled: map[poolKey]bool{},
		hibernates: map[string][]string{}, silent: map[string]bool{},
		scale: scale.NodesOf(workers, s.poolMember()),
	}
	for _, w := range workers {
		if w.Capacity != (farm.Capacity{}) {
			facts.largest[w.Node] = w.Largest()
		}
		if before, seen := facts.runtimes[w.Node]; !seen || before != nil { // any worker of a node may take a create
			facts.runtimes[w.Node] = w.Runtimes
		}
		facts.hibernates[w.Node] = w.Hibernates
		for _, image := range w.Images {
			facts.defaults[imageOnNode{image.Name, w.Node}] = image.Runtime
		}
		facts.silent[w.Node] = facts.silent[w.Node] || w.Problem != "" || w.Draining
		for _, p := range w.Pool {
			at := poolKey{p.Image, p.Runtime}
			facts.pooled[at] = facts.pooled[at] || p.Target > 0 || p.Ready > 0
		}
	}
	s.nodes.last, s.nodes.asked = facts, now
	return facts, nil
}

// checkCapacity refuses a sandbox that is larger than every node which offers its runtime: it would wait forever. If no node is known, it may
// wait.
func (s *Service) checkCapacity(ctx context.Context, r farm.Resources, runtime string) error {
	var largest farm.Capacity
	for _, fresh := range []bool{false, true} {
		nodes, err := s.readNodes(ctx, fresh)
		if err != nil || len(nodes.largest) == 0 {
			return err
		}
		largest = farm.Capacity{}
		for node, capacity := range nodes.largest {
			if !nodes.offers(node, runtime) {
				continue
			}
			if r.Capacity().Within(capacity) {
				return nil
			}
			if capacity.MemoryMB > largest.MemoryMB || capacity.MemoryMB == largest.MemoryMB && capacity.CPUs > largest.CPUs {
				largest = capacity
			}
		}
	}
	if runtime != "" {
		return farm.Invalidf("A sandbox of %d MiB and %g cores is larger than any node with the runtime %s: the largest has %d MiB and %g cores for sandboxes. Ask for less in resources.",
			r.MemoryMB, r.CPUs, runtime, largest.MemoryMB, largest.CPUs)
	}
	return farm.Invalidf("A sandbox of %d MiB and %g cores is larger than any node: the largest has %d MiB and %g cores for sandboxes. Ask for less in resources.",
		r.MemoryMB, r.CPUs, largest.MemoryMB, largest.CPUs)
}

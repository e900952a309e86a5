package placement

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/worker/retry"
)

// Rules of the gate.
const (
	firstPause = 20 * time.Millisecond  // after a create that did not fit, before the next one is tried
	maxPause   = time.Second            // the pauses double up to this
	fuller     = 0.2                    // a node that is fuller than another by this share leaves creates to the other
	turnEvery  = 200 * time.Millisecond // but takes one each turnEvery, since the other node may be slow
	// reservationGrace is how long a reservation may exist without a sandbox on this node.
	reservationGrace = 2 * time.Minute
)

// gate decides whether creates are taken off their queue, from what this worker knows of the reservations of all nodes.
type gate struct {
	smallest farm.Capacity // of a sandbox
	now      func() time.Time
	wake     func() // makes the queue ask the gate again

	mu       sync.Mutex
	down     bool // the engine does not answer
	drained  bool // the node takes no new sandboxes
	node     string
	host     farm.Capacity // memory and cores of the engine's host; zero: not measured yet
	capacity farm.Capacity // zero: not measured yet
	physical int           // MiB that the host has for sandboxes, which is the most for one; 0: not measured yet
	nodes    map[string]store.NodeCapacity
	pause    time.Duration
	until    time.Time     // creates are paused until then
	pooled   farm.Capacity // reserved by idle members of the pool, which give way to creates
	turn     time.Time     // when a create may be taken although another node has more room
}

// size is the capacity of the node.
func (g *gate) size() farm.Capacity {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.capacity
}

// offered is what the node reports to the others: nothing while it is drained, so that none leaves a create to it.
func (g *gate) offered() farm.Capacity {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.drained {
		return farm.Capacity{}
	}
	return g.capacity
}

// drains reports whether the node takes no new sandboxes.
func (g *gate) drains() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.drained
}

// largest is the memory in MiB that one sandbox may have; 0: not measured yet. Overcommit is for the sum of many.
func (g *gate) largest() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.physical
}

// machine is the memory and the cores of the node's host.
func (g *gate) machine() farm.Capacity {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.host
}

// sizeOf is what a sandbox with some resources takes of the node: what the engine gives it.
func (g *gate) sizeOf(r farm.Resources) farm.Capacity {
	return r.OnHost(g.machine().CPUs).Capacity()
}

// mine is the capacity of this worker's node, and what is reserved of it.
func (g *gate) mine() store.NodeCapacity {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.nodes[g.node]
}

// update takes the reservations of all nodes. It ends the pause when this node has more room than before.
func (g *gate) update(nodes map[string]store.NodeCapacity) {
	g.mu.Lock()
	before, now := g.nodes[g.node].Reserved, nodes[g.node].Reserved
	g.nodes = nodes
	freed := now.MemoryMB < before.MemoryMB || now.CPUs < before.CPUs
	if freed {
		g.pause, g.until = 0, time.Time{}
	}
	g.mu.Unlock()
	if freed {
		g.wake()
	}
}

// PauseCreates pauses the creates of a queue after one for which the engine itself had no room.
func (p *Placer) PauseCreates(queue string) {
	if _, gpu := farm.GPUQueue(queue); gpu {
		p.gpus.pauseQueue(queue)
		return
	}
	p.gate.pauseCreates()
}

// pauseCreates pauses creates after one that did not fit. The pause doubles until one fits.
func (g *gate) pauseCreates() {
	g.mu.Lock()
	g.pause = min(max(2*g.pause, firstPause), maxPause)
	g.until = g.now().Add(g.pause)
	pause := g.pause
	g.mu.Unlock()
	time.AfterFunc(pause, g.wake)
}

// resumeCreates ends the pause after a create that did fit.
func (g *gate) resumeCreates() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pause, g.until = 0, time.Time{}
}

// fits reports whether the smallest sandbox would fit now and creates are not paused.
func (g *gate) fits() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	own, known := g.nodes[g.node]
	return !g.down && !g.drained && (!known || own.Reserved.Plus(g.smallest).Within(own.Capacity)) && !g.now().Before(g.until)
}

// open reports whether a create may be taken now.
func (g *gate) open() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	own, known := g.nodes[g.node]
	switch {
	case g.down, g.drained:
		return false
	case !known:
		return true
	case !own.Reserved.Minus(g.pooled).Plus(g.smallest).Within(own.Capacity), now.Before(g.until):
		return false
	case !g.behind(own):
		return true
	}
	if now.Before(g.turn) {
		return false
	}
	g.turn = now.Add(turnEvery)
	time.AfterFunc(turnEvery, g.wake)
	return true
}

// behind reports whether another node has so much more room that creates are better left to it.
func (g *gate) behind(own store.NodeCapacity) bool {
	for name, other := range g.nodes {
		if name != g.node && other.Reserved.Plus(g.smallest).Within(other.Capacity) &&
			own.Reserved.Share(own.Capacity) > other.Reserved.Share(other.Capacity)+fuller {
			return true
		}
	}
	return false
}

// Measure asks the engine for the capacity of the node, and reports to all workers what is for sandboxes.
func (p *Placer) Measure(ctx context.Context) error {
	host, err := p.engine.Capacity(ctx)
	if err != nil {
		return fmt.Errorf("measure the node: %w", err)
	}
	physical := max(host.MemoryMB-p.cfg.MemoryReserveMB, 0)
	p.limitSandboxes(ctx, physical)
	p.gate.mu.Lock()
	p.gate.node, p.gate.host, p.gate.physical = p.node.ID(), host, physical
	p.gate.capacity = farm.Capacity{MemoryMB: int(float64(physical) * p.cfg.MemoryOvercommit), CPUs: host.CPUs * p.cfg.CPUOvercommit}
	p.gate.mu.Unlock()
	return p.RefreshCapacity(ctx)
}

// limitSandboxes bounds what all sandboxes of the node use together, where the worker may do that. What keeps it from it is logged once.
func (p *Placer) limitSandboxes(ctx context.Context, memoryMB int) {
	if p.host == nil || p.cfg.SandboxCgroup != CgroupAuto || memoryMB == 0 {
		return
	}
	err := p.host.LimitSandboxes(ctx, int64(memoryMB)<<20)
	if err == nil {
		p.cgroupProblem.Store(nil)
		return
	}
	problem := err.Error()
	if before := p.cgroupProblem.Swap(&problem); before == nil || *before != problem {
		p.log.WarnContext(ctx, "sandboxes have no common memory limit: if they use more than the host has, it is slow until the kernel ends some of them (see sandfarm doctor)", "error", err)
	}
}

// RefreshCapacity reads the reservations of all nodes, and reports that this node has a worker.
func (p *Placer) RefreshCapacity(ctx context.Context) error {
	nodes, err := p.store.ReportCapacity(ctx, p.node.ID(), p.gate.offered())
	if err != nil {
		return err
	}
	p.gate.update(nodes)
	return nil
}

// reserveCapacity reserves memory and cores for a new sandbox. It reports whether they were free.
func (p *Placer) reserveCapacity(ctx context.Context, claim *store.Claim) (bool, error) {
	var ok bool
	var nodes map[string]store.NodeCapacity
	want := store.ReserveRequest{
		Node: p.node.ID(), Capacity: p.gate.size(), Sandbox: claim.Sandbox.Ref(), Generation: claim.Sandbox.Generation, Want: p.gate.sizeOf(claim.Sandbox.Spec.Resources),
		Since: claim.Job.CreatedAt, Queue: claim.Job.Queue,
		Force: claim.Sandbox.State != farm.SandboxQueued && claim.Sandbox.State != farm.SandboxHibernated && claim.Sandbox.Node == p.node.ID() || p.gate.size() == (farm.Capacity{}), // its container may exist already; or the node was never measured
	}
	create := !ResumesSandbox(claim) // a resume comes by the queue of its node, which has pauses of its own, and may be larger than creates that fit
	if largest := p.gate.largest(); largest > 0 && want.Want.MemoryMB > largest && !want.Force {
		if create {
			p.gate.pauseCreates() // it never fits here: another node takes it
		}
		return false, nil
	}
	if claim.Sandbox.Pooled {
		want.Queue = "" // it did not wait in that queue
	}
	err := p.retry(ctx, func(ctx context.Context) (err error) {
		for evicted := true; evicted; { // idle members of the pool give way
			if ok, nodes, err = p.store.Reserve(ctx, want); err != nil || ok {
				return err
			}
			if evicted, err = p.makeRoom(ctx, nodes[p.node.ID()], want.Want); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return false, retry.Cause(ctx, err)
	}
	p.gate.update(nodes)
	switch {
	case !create:
	case ok:
		p.gate.resumeCreates()
	default:
		p.gate.pauseCreates()
	}
	return ok, nil
}

// ReleaseCapacity ends the reservation that a generation of a sandbox has, or an earlier one. If that fails, the reconciler does it later.
func (p *Placer) ReleaseCapacity(ctx context.Context, sandbox farm.Ref, generation int) {
	ctx, done := retry.Detached(ctx)
	defer done()
	nodes, err := p.store.Unreserve(ctx, p.node.ID(), p.gate.offered(), sandbox, generation)
	if err != nil {
		p.log.WarnContext(ctx, "reservation of a sandbox is left to the reconciler", "sandbox_id", sandbox.ID, "error", err)
		return
	}
	p.gate.update(nodes)
}

// ReconcileReservations corrects the reservations of this node. open are its open sandboxes with a running container, contained the
// sandboxes of all its containers but those that are hibernated.
func (p *Placer) ReconcileReservations(ctx context.Context, open []*farm.Sandbox, contained map[string]bool) error {
	if err := p.Measure(ctx); err != nil {
		return err
	}
	reservations, err := p.store.Reservations(ctx, p.node.ID())
	if err != nil {
		return err
	}
	var errs []error
	for _, s := range open {
		if _, reserved := reservations[s.Ref()]; reserved {
			continue
		}
		_, _, err := p.store.Reserve(ctx, store.ReserveRequest{Node: p.node.ID(), Capacity: p.gate.size(), Sandbox: s.Ref(), Generation: s.Generation, Want: p.gate.sizeOf(s.Spec.Resources), Force: true})
		errs = append(errs, err)
	}
	members, err := p.store.Members(ctx)
	if err != nil {
		return err
	}
	starting := map[string]bool{} // they wait for their turn
	for _, m := range members {
		starting[m.ID] = m.State == store.MemberStarting
	}
	for sandbox, reservation := range reservations {
		if contained[sandbox.ID] || starting[sandbox.ID] || p.deps.Now().Sub(reservation.At) < reservationGrace {
			continue
		}
		s, err := p.store.Sandbox(ctx, sandbox)
		needed := err == nil && !s.State.Final()
		if needed && s.State == farm.SandboxHibernated { // its resume may wait for its turn
			needed, err = p.store.HasJob(ctx, sandbox)
		}
		switch {
		case err == nil && needed && s.Generation <= reservation.Generation && (s.Node == p.node.ID() || s.Node == ""): // its job may still start it here
		case err == nil, farm.CodeOf(err) == farm.CodeNotFound:
			p.ReleaseCapacity(ctx, sandbox, reservation.Generation)
		default:
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, p.RefreshCapacity(ctx))...)
}

// otherHasRoom reports whether another node has room for the smallest sandbox.
func (g *gate) otherHasRoom(nodes map[string]store.NodeCapacity) bool {
	for name, other := range nodes {
		if name != g.node && other.Reserved.Plus(g.smallest).Within(other.Capacity) {
			return true
		}
	}
	return false
}

// named is mine with the id of the node; "" before Measure.
func (g *gate) named() (string, store.NodeCapacity) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.node, g.nodes[g.node]
}

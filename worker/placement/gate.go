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

// Rules of placement.
const (
	firstPause = 20 * time.Millisecond  // after a sandbox that found no room, before the next one is tried
	longPause  = time.Second            // what the pauses grow to
	fuller     = 0.2                    // a node that is so much fuller than another one leaves creates to that one
	turnEvery  = 200 * time.Millisecond // and takes one so often all the same: the other one may be slow
	// promisePatience is how long a promise may stand without a sandbox that is known.
	promisePatience = 2 * time.Minute
)

// gate decides whether creates are taken off their queue, from what this worker knows of the reservations of all nodes.
type gate struct {
	smallest farm.Capacity // that a sandbox may ask for
	now      func() time.Time
	wake     func() // makes the queue look again; set before the queue is served

	mu       sync.Mutex
	down     bool // the engine does not answer
	node     string
	capacity farm.Capacity // zero: not known yet
	nodes    map[string]store.NodeCapacity
	pause    time.Duration
	until    time.Time     // no create is taken before
	pooled   farm.Capacity // of what is reserved: idle members of the pool reserve it, and give way to creates
	turn     time.Time     // the next one that is taken although another node has more room
}

// size is the capacity of the node.
func (g *gate) size() farm.Capacity {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.capacity
}

// mine is the room of this worker's node.
func (g *gate) mine() store.NodeCapacity {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.nodes[g.node]
}

// learn takes what the store says of all nodes. More room on this one brings the queue back at once.
func (g *gate) learn(nodes map[string]store.NodeCapacity) {
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

// missed notes that a create found no room: others are tried after a pause, which grows while none finds any.
func (g *gate) missed() {
	g.mu.Lock()
	g.pause = min(max(2*g.pause, firstPause), longPause)
	g.until = g.now().Add(g.pause)
	pause := g.pause
	g.mu.Unlock()
	time.AfterFunc(pause, g.wake)
}

// placed notes that a create found room.
func (g *gate) placed() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pause, g.until = 0, time.Time{}
}

// fits reports whether the smallest sandbox would fit now.
func (g *gate) fits() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	own, known := g.nodes[g.node]
	return !g.down && (!known || own.Reserved.Plus(g.smallest).Within(own.Capacity)) && !g.now().Before(g.until)
}

// open reports whether creates are to be taken now.
func (g *gate) open() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	own, known := g.nodes[g.node]
	switch {
	case g.down:
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

// Measure asks the engine what the node has for sandboxes, and tells it to all.
func (p *Placer) Measure(ctx context.Context) error {
	host, err := p.engine.Capacity(ctx)
	if err != nil {
		return fmt.Errorf("measure the node: %w", err)
	}
	memory := float64(max(host.MemoryMB-p.cfg.MemoryReserveMB, 0)) * p.cfg.MemoryOvercommit
	targets, err := p.cfg.poolTargets(host.MemoryMB)
	if err != nil {
		return err
	}
	p.pool.mu.Lock()
	p.pool.targets = targets
	p.pool.mu.Unlock()
	p.gate.mu.Lock()
	p.gate.node, p.gate.capacity = p.node.ID(), farm.Capacity{MemoryMB: int(memory), CPUs: host.CPUs * p.cfg.CPUOvercommit}
	p.gate.mu.Unlock()
	return p.RefreshCapacity(ctx)
}

// RefreshCapacity renews what is known of all nodes, and that this one has a worker.
func (p *Placer) RefreshCapacity(ctx context.Context) error {
	nodes, err := p.store.ReportCapacity(ctx, p.node.ID(), p.gate.size())
	if err != nil {
		return err
	}
	p.gate.learn(nodes)
	return nil
}

// reserveCapacity gets a new sandbox room on this node. It reports whether there was any.
func (p *Placer) reserveCapacity(ctx context.Context, claim *store.Claim) (bool, error) {
	var ok bool
	var nodes map[string]store.NodeCapacity
	want := store.ReserveRequest{
		Node: p.node.ID(), Capacity: p.gate.size(), Sandbox: claim.Sandbox.Ref(), Want: claim.Sandbox.Spec.Resources.Capacity(),
		Since: claim.Job.CreatedAt, Queue: claim.Job.Queue,
		Force: claim.Sandbox.State != farm.SandboxQueued && claim.Sandbox.Node == p.node.ID() || p.gate.size() == (farm.Capacity{}), // its container may be there; the node was never measured
	}
	if claim.Sandbox.Pooled {
		want.Queue = "" // it did not wait for its turn
	}
	err := p.retry(ctx, func(ctx context.Context) (err error) {
		for yielded := true; yielded; { // idle members of the pool give way
			if ok, nodes, err = p.store.Reserve(ctx, want); err != nil || ok {
				return err
			}
			if yielded, err = p.evictIdleMember(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return false, retry.Cause(ctx, err)
	}
	p.gate.learn(nodes)
	if ok {
		p.gate.placed()
	} else {
		p.gate.missed()
	}
	return ok, nil
}

// ReleaseCapacity gives back what a sandbox was promised here. What fails is left to the reconciler.
func (p *Placer) ReleaseCapacity(ctx context.Context, sandbox farm.Ref) {
	ctx, done := retry.Detached(ctx)
	defer done()
	nodes, err := p.store.Unreserve(ctx, p.node.ID(), p.gate.size(), sandbox)
	if err != nil {
		p.log.WarnContext(ctx, "room of a sandbox is left to the reconciler", "sandbox_id", sandbox.ID, "error", err)
		return
	}
	p.gate.learn(nodes)
}

// ReconcileReservations makes the promises of this node fit what is on it: open are its open sandboxes with a container, and
// contained the sandboxes of all its containers.
func (p *Placer) ReconcileReservations(ctx context.Context, open []*farm.Sandbox, contained map[string]bool) error {
	if err := p.Measure(ctx); err != nil {
		return err
	}
	promises, err := p.store.Reservations(ctx, p.node.ID())
	if err != nil {
		return err
	}
	var errs []error
	for _, s := range open {
		if _, promised := promises[s.Ref()]; promised {
			continue
		}
		_, _, err := p.store.Reserve(ctx, store.ReserveRequest{Node: p.node.ID(), Capacity: p.gate.size(), Sandbox: s.Ref(), Want: s.Spec.Resources.Capacity(), Force: true})
		errs = append(errs, err)
	}
	for sandbox, promise := range promises {
		if contained[sandbox.ID] || p.deps.Now().Sub(promise.At) < promisePatience {
			continue
		}
		s, err := p.store.Sandbox(ctx, sandbox)
		switch {
		case err == nil && !s.State.Final() && (s.Node == p.node.ID() || s.Node == ""): // it is on its way
		case err == nil, farm.CodeOf(err) == farm.CodeNotFound:
			p.ReleaseCapacity(ctx, sandbox)
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

// named is the room of this worker's node, and the node; "" before it was measured.
func (g *gate) named() (string, store.NodeCapacity) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.node, g.nodes[g.node]
}

package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
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

// room is what this worker knows of the rooms of nodes: it decides whether creates are taken off their queue.
type room struct {
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
	lent     farm.Capacity // of what is promised: idle members of the pool hold it, and leave it to creates
	turn     time.Time     // the next one that is taken although another node has more room
}

// size is the capacity of the node.
func (r *room) size() farm.Capacity {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.capacity
}

// mine is the room of this worker's node.
func (r *room) mine() store.NodeCapacity {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.nodes[r.node]
}

// learn takes what the store says of all nodes. More room on this one brings the queue back at once.
func (r *room) learn(nodes map[string]store.NodeCapacity) {
	r.mu.Lock()
	before, now := r.nodes[r.node].Reserved, nodes[r.node].Reserved
	r.nodes = nodes
	freed := now.MemoryMB < before.MemoryMB || now.CPUs < before.CPUs
	if freed {
		r.pause, r.until = 0, time.Time{}
	}
	r.mu.Unlock()
	if freed {
		r.wake()
	}
}

// missed notes that a create found no room: others are tried after a pause, which grows while none finds any.
func (r *room) missed() {
	r.mu.Lock()
	r.pause = min(max(2*r.pause, firstPause), longPause)
	r.until = r.now().Add(r.pause)
	pause := r.pause
	r.mu.Unlock()
	time.AfterFunc(pause, r.wake)
}

// placed notes that a create found room.
func (r *room) placed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pause, r.until = 0, time.Time{}
}

// fits reports whether the smallest sandbox would fit now.
func (r *room) fits() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	own, known := r.nodes[r.node]
	return !r.down && (!known || own.Reserved.Plus(r.smallest).Within(own.Capacity)) && !r.now().Before(r.until)
}

// open reports whether creates are to be taken now.
func (r *room) open() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	own, known := r.nodes[r.node]
	switch {
	case r.down:
		return false
	case !known:
		return true
	case !own.Reserved.Minus(r.lent).Plus(r.smallest).Within(own.Capacity), now.Before(r.until):
		return false
	case !r.behind(own):
		return true
	}
	if now.Before(r.turn) {
		return false
	}
	r.turn = now.Add(turnEvery)
	time.AfterFunc(turnEvery, r.wake)
	return true
}

// behind reports whether another node has so much more room that creates are better left to it.
func (r *room) behind(own store.NodeCapacity) bool {
	for name, other := range r.nodes {
		if name != r.node && other.Reserved.Plus(r.smallest).Within(other.Capacity) &&
			own.Reserved.Share(own.Capacity) > other.Reserved.Share(other.Capacity)+fuller {
			return true
		}
	}
	return false
}

// measure asks the engine what the node has for sandboxes, and tells it to all.
func (w *Worker) measure(ctx context.Context) error {
	host, err := w.engine.Capacity(ctx)
	if err != nil {
		return fmt.Errorf("measure the node: %w", err)
	}
	memory := float64(max(host.MemoryMB-w.cfg.MemoryReserveMB, 0)) * w.cfg.MemoryOvercommit
	targets, err := w.cfg.poolTargets(host.MemoryMB)
	if err != nil {
		return err
	}
	w.pool.mu.Lock()
	w.pool.targets = targets
	w.pool.mu.Unlock()
	w.room.mu.Lock()
	w.room.node, w.room.capacity = w.node, farm.Capacity{MemoryMB: int(memory), CPUs: host.CPUs * w.cfg.CPUOvercommit}
	w.room.mu.Unlock()
	return w.lookAtRooms(ctx)
}

// lookAtRooms renews what is known of all nodes, and that this one has a worker.
func (w *Worker) lookAtRooms(ctx context.Context) error {
	nodes, err := w.store.ReportCapacity(ctx, w.node, w.room.size())
	if err != nil {
		return err
	}
	w.room.learn(nodes)
	return nil
}

// takeRoom gets a new sandbox room on this node. It reports whether there was any.
func (w *Worker) takeRoom(ctx context.Context, r *run) (bool, error) {
	var ok bool
	var nodes map[string]store.NodeCapacity
	want := store.ReserveRequest{
		Node: w.node, Capacity: w.room.size(), Sandbox: ref(r.Sandbox), Want: r.Sandbox.Spec.Resources.Capacity(),
		Since: r.Job.CreatedAt, Queue: r.Job.Queue,
		Force: r.Sandbox.State != farm.SandboxQueued && r.Sandbox.Node == w.node || w.room.size() == (farm.Capacity{}), // its container may be there; the node was never measured
	}
	if r.Sandbox.Pooled {
		want.Queue = "" // it did not wait for its turn
	}
	err := w.persist(ctx, func(ctx context.Context) (err error) {
		for yielded := true; yielded; { // idle members of the pool give way
			if ok, nodes, err = w.store.Reserve(ctx, want); err != nil || ok {
				return err
			}
			if yielded, err = w.yieldMember(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return false, causeOr(ctx, err)
	}
	w.room.learn(nodes)
	if ok {
		w.room.placed()
	} else {
		w.room.missed()
	}
	return ok, nil
}

// leaveRoom gives back what a sandbox was promised here. What fails is left to the reconciler.
func (w *Worker) leaveRoom(ctx context.Context, sandbox farm.Ref) {
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer done()
	nodes, err := w.store.Unreserve(ctx, w.node, w.room.size(), sandbox)
	if err != nil {
		w.log.WarnContext(ctx, "room of a sandbox is left to the reconciler", "sandbox_id", sandbox.ID, "error", err)
		return
	}
	w.room.learn(nodes)
}

// reconcileRoom makes the promises of this node fit what is on it: open are its open sandboxes with a container, and
// contained the sandboxes of all its containers.
func (w *Worker) reconcileRoom(ctx context.Context, open []*farm.Sandbox, contained map[string]bool) error {
	if err := w.measure(ctx); err != nil {
		return err
	}
	promises, err := w.store.Reservations(ctx, w.node)
	if err != nil {
		return err
	}
	var errs []error
	for _, s := range open {
		if _, promised := promises[ref(s)]; promised {
			continue
		}
		_, _, err := w.store.Reserve(ctx, store.ReserveRequest{Node: w.node, Capacity: w.room.size(), Sandbox: ref(s), Want: s.Spec.Resources.Capacity(), Force: true})
		errs = append(errs, err)
	}
	for sandbox, promise := range promises {
		if contained[sandbox.ID] || w.now().Sub(promise.At) < promisePatience {
			continue
		}
		s, err := w.store.Sandbox(ctx, sandbox)
		switch {
		case err == nil && !s.State.Final() && (s.Node == w.node || s.Node == ""): // it is on its way
		case err == nil, farm.CodeOf(err) == farm.CodeNotFound:
			w.leaveRoom(ctx, sandbox)
		default:
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, w.lookAtRooms(ctx))...)
}

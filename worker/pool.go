package worker

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// Times of the pool.
const (
	poolEvery = time.Second            // looks at the pool; a claim brings the next one forward
	poolLease = 10 * time.Second       // one worker of a node tends the pool; another one after this
	fillQuiet = 750 * time.Millisecond // after a claim nothing is started while there are members: the next create may be on its way
	fillPause = time.Second            // after a fill that failed, doubled with each one
	fillRest  = time.Minute            // what these pauses grow to
)

// labelMember marks the container of a member of the pool. It was nobody's when it was made: whose it is now is in the pool's
// records and, for a Redis that forgets, in the engine's note of the sandbox.
const labelMember = "sandfarm.pool"

// Reasons for which members leave the pool without a claim, as metrics have them.
const (
	leftDied    = "died"    // its container or its kernel
	leftChanged = "changed" // the image, the agent or the settings that it was made from
	leftOld     = "old"     // over worker.pool_age
	leftSurplus = "surplus" // more than worker.pool asks for
	leftRoom    = "room"    // a create needed its room
	leftStale   = "stale"   // its worker ended while it started
)

// pool is what this worker knows of the warm pool of its node.
type pool struct {
	kick chan struct{} // brings the next look forward

	mu      sync.Mutex
	targets map[string]int  // members wanted of each image; set once the node is known
	filling map[string]bool // that this worker starts now
	cold    int             // sandboxes that this worker starts for jobs now: they go first
	idle    map[string]int  // ready ones of the node, by image
	claimed time.Time       // when one was last claimed, as the records have it
	room    farm.Capacity   // that the idle ones hold
	oldest  time.Time       // when the oldest of them became ready; zero: there is none
	pause   time.Duration   // after fills that failed
	until   time.Time       // nothing is filled before
}

func newPool() pool {
	return pool{kick: make(chan struct{}, 1), targets: map[string]int{}, filling: map[string]bool{}, idle: map[string]int{}}
}

// stir brings the next look at the pool forward.
func (p *pool) stir() {
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

// note takes what the records say of the node's members.
func (p *pool) note(members []store.Member) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle, p.room, p.oldest = map[string]int{}, farm.Capacity{}, time.Time{}
	for _, m := range members {
		if m.State == store.MemberClaimed && m.At.After(p.claimed) {
			p.claimed = m.At
		}
		if m.State != store.MemberIdle {
			continue
		}
		p.idle[m.Image]++
		p.room = p.room.Plus(m.Resources.Capacity())
		if p.oldest.IsZero() || m.At.Before(p.oldest) {
			p.oldest = m.At
		}
	}
}

// lent is the room of the node that idle members hold: they leave it to creates.
func (p *pool) lent() farm.Capacity {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.room
}

// stock tells what there is of each image, for the registration.
func (p *pool) stock() []farm.PoolStock {
	p.mu.Lock()
	defer p.mu.Unlock()
	names := maps.Clone(p.targets)
	for image := range p.idle {
		names[image] = p.targets[image]
	}
	var out []farm.PoolStock
	for _, image := range slices.Sorted(maps.Keys(names)) {
		out = append(out, farm.PoolStock{Image: image, Target: names[image], Ready: p.idle[image]})
	}
	return out
}

// age is for how long the oldest ready member has waited.
func (p *pool) age(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.oldest.IsZero() {
		return 0
	}
	return max(now.Sub(p.oldest), 0)
}

// wants reports whether this worker's settings ask for a pool.
func (p *pool) wants() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range p.targets {
		if n > 0 {
			return true
		}
	}
	return false
}

// begun counts a sandbox that is started for a job, until the function that it gives is called.
func (p *pool) begun() (ended func()) {
	p.mu.Lock()
	p.cold++
	p.mu.Unlock()
	return func() {
		p.mu.Lock()
		p.cold--
		p.mu.Unlock()
		p.stir()
	}
}

// lookAtPool renews what is known of the node's members.
func (w *Worker) lookAtPool(ctx context.Context) ([]store.Member, error) {
	members, err := w.store.Members(ctx, w.node)
	if err != nil {
		return nil, err
	}
	w.pool.note(members)
	w.room.mu.Lock()
	w.room.lent = w.pool.lent()
	w.room.mu.Unlock()
	return members, nil
}

// keepPool tends the pool until the worker stops.
func (w *Worker) keepPool() {
	look := w.seen.counted(loopPool, w.tend)
	for {
		if err := look(w.base); err != nil && w.base.Err() == nil {
			w.log.WarnContext(w.base, "the warm pool was not looked after; it is tried again", "worker_id", w.id, "error", err)
		}
		timer := time.NewTimer(poolEvery)
		select {
		case <-timer.C:
		case <-w.pool.kick:
			timer.Stop()
		case <-w.base.Done():
			timer.Stop()
			return
		}
	}
}

// poolLock is the lock of the one worker of a node that tends its pool.
func (w *Worker) poolLock() string { return "pool:" + w.node }

// tend takes members out that should not be there, and starts those that are missing. One worker of a node does.
func (w *Worker) tend(ctx context.Context) error {
	if !w.pool.wants() {
		return nil // members of earlier settings are the reconciler's
	}
	held, err := w.store.Lock(ctx, w.poolLock(), w.id, poolLease)
	if err != nil || !held {
		return err
	}
	members, err := w.lookAtPool(ctx)
	if err != nil {
		return err
	}
	have := map[string]int{}
	for _, m := range members {
		if m.State == store.MemberClaimed {
			continue
		}
		reason, err := w.unfit(ctx, m, have[m.Image])
		if err != nil {
			return err
		}
		if reason == "" {
			have[m.Image]++
		} else if err := w.retire(ctx, m, reason); err != nil {
			return err
		}
	}
	return w.fill(ctx, have)
}

// unfit says why a member should leave the pool, "" when it should not. Have is how many of its image stay before it.
func (w *Worker) unfit(ctx context.Context, m store.Member, have int) (string, error) {
	w.pool.mu.Lock()
	target, ours := w.pool.targets[m.Image], w.pool.filling[m.ID]
	w.pool.mu.Unlock()
	if m.State == store.MemberStarting {
		if ours {
			return "", nil
		}
		alive, err := w.store.Alive(ctx, m.Worker)
		if err != nil || alive && m.Worker != w.id {
			return "", err
		}
		return leftStale, nil
	}
	version, err := w.memberVersion(ctx, m.Image)
	switch {
	case farm.CodeOf(err) == farm.CodeInvalid: // the image is gone
		return leftChanged, nil
	case err != nil:
		return "", err
	case m.Version != version:
		return leftChanged, nil
	case w.now().Sub(m.At) > w.cfg.PoolAge:
		return leftOld, nil
	case have >= target:
		return leftSurplus, nil
	case w.memberDead(ctx, m):
		return leftDied, nil
	default:
		return "", nil
	}
}

// memberDead reports whether a member's container has ended. The stream to its agent stays open, so that this shows at once.
func (w *Worker) memberDead(ctx context.Context, m store.Member) bool {
	if w.links.has(m.ID) {
		return false
	}
	box := w.memberBox(m)
	dctx, done := context.WithTimeout(ctx, memberPatience)
	defer done()
	if _, err := w.link(dctx, box); err == nil {
		return false
	}
	_, gone := w.gone(ctx, box)
	return gone
}

// memberVersion names what a member of an image is made from now. Any difference makes the old ones useless.
func (w *Worker) memberVersion(ctx context.Context, name string) (string, error) {
	image, err := w.image(ctx, name)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s %s %s %s %d", image.ID, w.volume, w.engine.Runtime(), w.cfg.Version, w.cfg.Limits.Disk.Default), nil
}

// retire takes a member that nobody claimed out of the pool and removes it. What another one has taken stays.
func (w *Worker) retire(ctx context.Context, m store.Member, reason string) error {
	taken, err := w.dropMember(ctx, m.ID, m.State)
	if err != nil || !taken {
		return err
	}
	w.seen.poolLeft.WithLabelValues(reason).Inc()
	w.log.InfoContext(ctx, "sandbox left the warm pool", "sandbox_id", m.ID, "image", m.Image, "reason", reason)
	w.scrap(ctx, m)
	return nil
}

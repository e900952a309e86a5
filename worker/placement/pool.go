package placement

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// Times of the warm pool.
const (
	poolEvery = time.Second            // between two rounds of maintenance; a claim starts one earlier
	poolLease = 10 * time.Second       // one worker of a node holds the lock and maintains the pool; another one takes over after this
	fillQuiet = 750 * time.Millisecond // after a claim no member is started while some are idle: the next create may follow at once
	fillPause = time.Second            // after a fill that failed; doubles with each failure
	fillMax   = time.Minute            // the pauses double up to this
)

// Reasons why members leave the pool without a claim, as metrics have them.
const (
	LeftDied    = "died"    // its container or its kernel
	LeftChanged = "changed" // the image, the agent or the settings that it was made from
	LeftOld     = "old"     // over Config.PoolAge
	LeftSurplus = "surplus" // more than worker.pool asks for, or than fit now
	LeftRoom    = "room"    // a create needed its memory and cores
	LeftStale   = "stale"   // its worker died while it started
)

// pool is what this worker knows of the warm pool of its node.
type pool struct {
	wake chan struct{} // starts the next round now

	mu        sync.Mutex
	targets   map[poolKey]int // wanted members
	spare     int             // a pool key may have so many times its target before members are retired
	auto      bool            // the targets are chosen, and a pool fits
	drained   bool            // the node is drained: nothing is wanted
	filling   map[string]bool // members that this worker starts now
	idle      map[poolKey]int // idle members of the node
	claimed   time.Time       // when a member was last claimed, by the records
	idleTotal farm.Capacity   // reserved by the idle members
	oldest    time.Time       // when the oldest idle member became ready; zero: there is none
	pause     time.Duration   // after fills that failed
	until     time.Time       // nothing is started until then
}

func newPool(targets map[poolKey]int) pool {
	return pool{wake: make(chan struct{}, 1), targets: targets, spare: 1, filling: map[string]bool{}, idle: map[poolKey]int{}}
}

// wakeUp starts the next round of maintenance now.
func (p *pool) wakeUp() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// update takes the node's members from the records.
func (p *pool) update(members []store.Member) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle, p.idleTotal, p.oldest = map[poolKey]int{}, farm.Capacity{}, time.Time{}
	for _, m := range members {
		if m.State == store.MemberClaimed && m.At.After(p.claimed) {
			p.claimed = m.At
		}
		if m.State != store.MemberIdle {
			continue
		}
		p.idle[poolKeyOf(m)]++
		p.idleTotal = p.idleTotal.Plus(m.Resources.Capacity())
		if p.oldest.IsZero() || m.At.Before(p.oldest) {
			p.oldest = m.At
		}
	}
}

// reserved is what idle members reserve on the node: they give way to creates.
func (p *pool) reserved() farm.Capacity {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.idleTotal
}

// stock lists wanted and idle members of each pool key, for the registration.
func (p *pool) stock() []farm.PoolStock {
	p.mu.Lock()
	defer p.mu.Unlock()
	wanted := map[poolKey]int{}
	for at := range p.targets {
		wanted[at] = p.target(at)
	}
	for at := range p.idle {
		wanted[at] = p.target(at)
	}
	var out []farm.PoolStock
	for at, target := range wanted {
		out = append(out, farm.PoolStock{Image: at.image, Runtime: at.runtime, Target: target, Ready: p.idle[at]})
	}
	slices.SortFunc(out, func(a, b farm.PoolStock) int {
		return cmp.Or(cmp.Compare(a.Image, b.Image), cmp.Compare(a.Runtime, b.Runtime))
	})
	return out
}

// target is how many members a pool key should have. The caller holds the lock.
func (p *pool) target(at poolKey) int {
	if p.drained {
		return 0
	}
	return p.targets[at]
}

// drain sets whether the node is drained, and starts a round that retires or fills.
func (p *pool) drain(drained bool) {
	p.mu.Lock()
	p.drained = drained
	p.mu.Unlock()
	p.wakeUp()
}

// age is for how long the oldest idle member has waited.
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
	return p.auto
}

// RefreshPool reads the node's members from the records, and chooses the size of an automatic pool.
func (p *Placer) RefreshPool(ctx context.Context) ([]store.Member, error) {
	members, err := p.store.Members(ctx, p.node.ID())
	if err != nil {
		return nil, err
	}
	p.pool.update(members)
	p.gate.mu.Lock()
	p.gate.pooled = p.pool.reserved()
	p.gate.mu.Unlock()
	p.resizePool(members)
	return members, nil
}

// RunPool maintains the pool until ctx ends. Errors are logged and counted, and the next round tries again.
func (p *Placer) RunPool(ctx context.Context) {
	for {
		if err := p.maintain(ctx); err != nil && ctx.Err() == nil {
			p.deps.PoolFailed()
			p.log.WarnContext(ctx, "the warm pool was not maintained; it is tried again", "worker_id", p.deps.WorkerID, "error", err)
		}
		timer := time.NewTimer(poolEvery)
		select {
		case <-timer.C:
		case <-p.pool.wake:
			timer.Stop()
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// poolLock is held by the one worker of a node that maintains its pool.
func (p *Placer) poolLock() string { return "pool:" + p.node.ID() }

// maintain retires members that should not be there, and starts missing ones. Only the worker of the node that holds the lock does.
func (p *Placer) maintain(ctx context.Context) error {
	if !p.pool.wants() {
		return nil // the reconciler retires members of earlier settings
	}
	locked, err := p.store.Lock(ctx, p.poolLock(), p.deps.WorkerID, poolLease)
	if err != nil || !locked {
		return err
	}
	members, err := p.RefreshPool(ctx)
	if err != nil {
		return err
	}
	have := map[poolKey]int{}
	for _, m := range members {
		if m.State == store.MemberClaimed {
			continue
		}
		reason, err := p.retireReason(ctx, m, have[poolKeyOf(m)])
		if err != nil {
			return err
		}
		if reason == "" {
			have[poolKeyOf(m)]++
		} else if err := p.Retire(ctx, m, reason); err != nil {
			return err
		}
	}
	return p.fill(ctx, have)
}

// retireReason says why a member should leave the pool; "" when it should stay. have counts the members of its pool key that stay.
func (p *Placer) retireReason(ctx context.Context, m store.Member, have int) (string, error) {
	p.pool.mu.Lock()
	limit, ours := p.pool.target(poolKeyOf(m))*p.pool.spare, p.pool.filling[m.ID]
	p.pool.mu.Unlock()
	if m.State == store.MemberStarting {
		if ours {
			return "", nil
		}
		alive, err := p.store.Alive(ctx, m.Worker)
		if err != nil || alive && m.Worker != p.deps.WorkerID {
			return "", err
		}
		return LeftStale, nil
	}
	version, err := p.MemberVersion(ctx, m.Image, m.Runtime)
	switch {
	case farm.CodeOf(err) == farm.CodeInvalid: // the image is gone
		return LeftChanged, nil
	case err != nil:
		return "", err
	case m.Version != version:
		return LeftChanged, nil
	case p.deps.Now().Sub(m.At) > p.cfg.PoolAge:
		return LeftOld, nil
	case have >= limit:
		return LeftSurplus, nil
	case p.memberDead(ctx, m):
		return LeftDied, nil
	default:
		return "", nil
	}
}

// memberDead reports whether a member's container has ended. The connection to its agent stays open, so an end is noticed at once.
func (p *Placer) memberDead(ctx context.Context, m store.Member) bool {
	if p.node.Connected(m.ID) {
		return false
	}
	box := p.MemberSandbox(m)
	dctx, done := context.WithTimeout(ctx, memberTimeout)
	defer done()
	if _, err := p.node.Connect(dctx, box); err == nil {
		return false
	}
	_, gone := p.node.Gone(ctx, box)
	return gone
}

// MemberVersion names what members of an image and a runtime ("": the default) are made from now. Members of another version are retired.
func (p *Placer) MemberVersion(ctx context.Context, name, runtime string) (string, error) {
	image, err := p.node.Image(ctx, name)
	if err != nil {
		return "", err
	}
	runtime = p.node.Runtime(farm.SandboxSpec{Image: name, Runtime: runtime})
	return fmt.Sprintf("%s %s %s %s %d", image.ID, p.node.Agent(runtime), runtime, p.cfg.Version, p.cfg.Limits.Disk.Default), nil
}

// Retire removes an unclaimed member. A member that was claimed meanwhile stays.
func (p *Placer) Retire(ctx context.Context, m store.Member, reason string) error {
	taken, err := p.DropMember(ctx, m.ID, m.State)
	if err != nil || !taken {
		return err
	}
	p.metrics.left.WithLabelValues(reason).Inc()
	p.log.InfoContext(ctx, "sandbox left the warm pool", "sandbox_id", m.ID, "image", m.Image, "reason", reason)
	p.removeMember(ctx, m)
	return nil
}

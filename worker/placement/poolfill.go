package placement

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/worker/node"
	"github.com/sandfarm/sandfarm/worker/retry"
)

// errPoolFull says that the node has no room for another member. This is not a failure: the pool waits.
var errPoolFull = errors.New("the node has no room for another member of the pool")

// warmModules is what kernels of members have imported, where their image has it.
func warmModules() []string { return []string{"numpy", "pandas", "matplotlib.pyplot"} }

// fill starts missing members, a few at a time.
func (p *Placer) fill(ctx context.Context, have map[poolKey]int) error {
	missing := p.pool.missing(have, p.deps.Now(), false)
	if len(missing) == 0 {
		return nil
	}
	waiting, err := p.store.Waiting(ctx, farm.QueueCPU)
	if err != nil {
		return err
	}
	if waiting > 0 {
		missing = p.pool.missing(have, p.deps.Now(), true)
	}
	for _, at := range missing {
		id := farm.NewID(farm.SandboxPrefix)
		if !p.pool.fillBegins(id, p.cfg.PoolFill) {
			return nil
		}
		p.background.Go(func() { //nolint:contextcheck // it outlives this round
			err := p.addMember(p.deps.Base, id, at)
			p.pool.fillEnded(id, err, p.deps.Now())
			switch {
			case err == nil:
				p.pool.wakeUp()
			case errors.Is(err, errPoolFull), p.deps.Base.Err() != nil:
			default:
				p.metrics.fillErrors.Inc()
				p.log.WarnContext(p.deps.Base, "no sandbox was added to the warm pool; it is tried again", "image", at.image, "runtime", at.runtime, "error", err)
			}
		})
	}
	return nil
}

// missing lists the pool keys of members to start: none while fills pause. Right after a claim only pool keys without an idle member are filled, since a
// start takes the cores that the next claim needs; and while creates wait for room, one member of these at a time: a tenant whose create waits for long would
// keep the pool empty for others.
func (p *pool) missing(have map[poolKey]int, now time.Time, busy bool) []poolKey {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.drained || now.Before(p.until) || busy && len(p.filling) > 0 {
		return nil
	}
	since := now.Sub(p.claimed) // negative if clocks differ
	quiet := since < 0 || since >= fillQuiet
	var out []poolKey
	for at, target := range p.targets {
		if (!quiet || busy) && p.idle[at] > 0 {
			continue
		}
		for range target - have[at] {
			out = append(out, at)
		}
	}
	if busy {
		out = out[:min(len(out), 1)]
	}
	return out
}

// fillBegins counts a fill. It reports false when most fills run already.
func (p *pool) fillBegins(id string, limit int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.filling) >= limit {
		return false
	}
	p.filling[id] = true
	return true
}

// fillEnded counts the end of a fill. After a failure the pool pauses.
func (p *pool) fillEnded(id string, err error, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.filling, id)
	if err == nil {
		p.pause, p.until = 0, time.Time{}
		return
	}
	p.pause = min(max(2*p.pause, fillPause), fillMax)
	p.until = now.Add(p.pause)
}

// addMember starts a member and offers it to creates.
func (p *Placer) addMember(ctx context.Context, id string, at poolKey) error {
	version, err := p.MemberVersion(ctx, at.image, at.runtime)
	if err != nil {
		return err
	}
	m := store.Member{
		ID: id, Node: p.node.ID(), Image: at.image, Runtime: at.runtime, Network: p.memberNetwork(), Version: version, Worker: p.deps.WorkerID, State: store.MemberStarting,
		Resources: p.memberResources(),
	}
	ok, nodes, err := p.store.Reserve(ctx, store.ReserveRequest{Node: p.node.ID(), Capacity: p.gate.size(), Sandbox: farm.Ref{ID: id}, Want: m.Resources.Capacity()})
	if err != nil {
		return err
	}
	p.gate.update(nodes)
	if !ok {
		return errPoolFull
	}
	err = p.store.BeginMember(ctx, m)
	if err == nil {
		err = p.startMember(ctx, &m)
	}
	if err == nil {
		err = p.store.MemberReady(ctx, m)
	}
	if err != nil {
		_, dropErr := p.DropMember(ctx, id, store.MemberStarting)
		p.removeMember(ctx, m)
		return errors.Join(err, dropErr)
	}
	p.metrics.started.Inc()
	p.log.InfoContext(ctx, "sandbox joined the warm pool", "sandbox_id", id, "image", at.image, "runtime", at.runtime)
	return nil
}

// memberResources are those of members: the defaults of creates.
func (p *Placer) memberResources() farm.Resources {
	l := p.cfg.Limits
	return farm.Resources{MemoryMB: l.Memory.Default, CPUs: l.CPUs.Default, PIDs: l.PIDs.Default, DiskMB: l.Disk.Default}
}

// memberNetwork is the network of members: the default of creates.
func (p *Placer) memberNetwork() farm.Network {
	if !p.node.HasIndex() {
		return farm.NetworkNone
	}
	return farm.NetworkPackages
}

// MemberSandbox describes a member as the sandbox that it may become.
func (p *Placer) MemberSandbox(m store.Member) *farm.Sandbox {
	return &farm.Sandbox{
		ID: m.ID, Tenant: m.Tenant, Node: m.Node, Container: m.Container,
		Spec: farm.SandboxSpec{Image: m.Image, Runtime: m.Runtime, Network: m.Network, Resources: m.Resources},
	}
}

// startMember starts a member's container and its kernel in its turn, as those of a create with default settings.
func (p *Placer) startMember(ctx context.Context, m *store.Member) error {
	started, err := p.Turn(ctx, poolTenant)
	if err != nil {
		return err
	}
	defer started()
	ctx, done := context.WithTimeout(ctx, 2*p.cfg.CreateTimeout) // imports come on top of a create
	defer done()
	image, err := p.node.Image(ctx, m.Image)
	if err != nil {
		return err
	}
	box := p.MemberSandbox(*m)
	spec := p.node.ContainerSpec(box, image)
	spec.Generation, spec.Labels = 0, map[string]string{node.LabelPool: m.Image}
	if m.Container, err = p.engine.Create(ctx, spec); err != nil {
		return fmt.Errorf("create container: %w", err)
	}
	if err := p.engine.Start(ctx, m.Container); err != nil {
		return fmt.Errorf("start container: %w", err)
	}
	box.Container = m.Container
	c, err := p.node.Connect(ctx, box)
	if err != nil {
		return retry.Cause(ctx, err)
	}
	switch err := c.StartKernel(ctx, "default", "python"); farm.CodeOf(err) {
	case "":
	case farm.CodeInvalid, farm.CodeNotFound: // the image has no kernel; the container alone saves some time
		return nil
	default:
		return retry.Cause(ctx, fmt.Errorf("start kernel: %w", err))
	}
	if _, err := c.WarmKernel(ctx, "default", warmModules()...); err != nil {
		return retry.Cause(ctx, fmt.Errorf("warm kernel: %w", err))
	}
	return nil
}

// DropMember deletes the record of a member that is in one of these states, and reports whether it did. The caller who did removes
// the container.
func (p *Placer) DropMember(ctx context.Context, id string, states ...store.MemberState) (bool, error) {
	ctx, done := retry.Detached(ctx)
	defer done()
	err := p.store.DropMember(ctx, id, states...)
	if errors.Is(err, store.ErrNoMember) {
		return false, nil
	}
	return err == nil, err
}

// removeMember removes the container and the reservation of a member without a record. If that fails, the reconciler does it later.
func (p *Placer) removeMember(ctx context.Context, m store.Member) {
	ctx, done := retry.Detached(ctx)
	defer done()
	p.node.Disconnect(m.ID)
	if err := p.engine.Remove(ctx, p.node.Container(p.MemberSandbox(m))); err != nil {
		p.log.WarnContext(ctx, "container of the warm pool is left to the reconciler", "sandbox_id", m.ID, "error", err)
	}
	p.ReleaseCapacity(ctx, farm.Ref{ID: m.ID}, 1)
}

// ClaimGrace is how long a claim may exist without a sandbox: the API records the sandbox right after the claim.
const ClaimGrace = time.Minute

// memberTimeout is how long a member may take to answer. It is idle, so it answers at once unless the machine is overloaded.
const memberTimeout = 5 * time.Second

// errUnfit says that a member cannot serve the sandbox that claimed it.
var errUnfit = errors.New("the member was made from another image, agent or settings")

// AssignMember makes the member that a sandbox has claimed the sandbox's own: the member gets the requested limits, and the engine's
// note names its owner. It reports false when there is no usable member: then the member is removed, and the sandbox starts cold.
func (p *Placer) AssignMember(ctx context.Context, s *farm.Sandbox) (container string, ok bool, err error) {
	m, err := p.store.Member(ctx, s.ID)
	switch {
	case errors.Is(err, store.ErrNoMember): // an earlier attempt started cold
	case err != nil:
		return "", false, err
	case m.Node == p.node.ID() && m.State == store.MemberClaimed && m.Tenant == s.Tenant:
		if err = p.assign(ctx, s, m); err == nil {
			return m.Container, true, nil
		}
		if ctx.Err() != nil {
			return "", false, context.Cause(ctx)
		}
		p.metrics.unusable.Inc()
		p.log.WarnContext(ctx, "a sandbox of the warm pool could not be used; another one is started", "sandbox_id", s.ID, "error", err)
		if _, err := p.DropMember(ctx, s.ID, store.MemberClaimed); err != nil {
			return "", false, err
		}
	}
	p.node.Disconnect(s.ID)
	return "", false, p.engine.Remove(ctx, p.engine.Name(s.ID)) // a container of this name must not be taken for the sandbox's
}

// assign checks a member, and sets its limits and its note. Each step can be repeated.
func (p *Placer) assign(ctx context.Context, s *farm.Sandbox, m *store.Member) error {
	ctx, done := context.WithTimeout(ctx, memberTimeout)
	defer done()
	version, err := p.MemberVersion(ctx, m.Image, m.Runtime)
	if err != nil {
		return err
	}
	runtime := p.node.Runtime(farm.SandboxSpec{Image: m.Image, Runtime: m.Runtime})
	if m.Version != version || runtime != p.node.Runtime(s.Spec) || m.Resources.DiskMB != s.Spec.Resources.DiskMB || m.Network != s.Spec.Network || len(s.Spec.Env) > 0 {
		return errUnfit
	}
	box := *s
	box.Container = m.Container
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		c, err := p.node.Connect(ctx, &box)
		if err != nil {
			return err
		}
		err = c.StartKernel(ctx, "default", "python") // it runs, or is started again
		if code := farm.CodeOf(err); code == farm.CodeInvalid || code == farm.CodeNotFound {
			return nil
		}
		return err
	})
	group.Go(func() error { return p.node.SendDeadline(ctx, &box) }) // a member has none
	group.Go(func() error {
		if s.Spec.Resources == m.Resources {
			return nil // an update takes the engine longer than all the rest
		}
		return p.engine.Update(ctx, m.Container, runtime, s.Spec.Resources)
	})
	group.Go(func() error { return p.engine.Note(ctx, s.ID, s.Tenant, node.Labels(&box)) })
	return group.Wait()
}

// ForgetMember removes the member record and the note of a sandbox that has ended. If that fails, the reconciler does it later.
func (p *Placer) ForgetMember(ctx context.Context, s *farm.Sandbox) {
	if !s.Pooled {
		return
	}
	ctx, done := retry.Detached(ctx)
	defer done()
	_, err := p.DropMember(ctx, s.ID, store.MemberClaimed)
	if err := errors.Join(err, p.engine.RemoveNote(ctx, s.ID)); err != nil {
		p.log.WarnContext(ctx, "records of a sandbox from the warm pool are left to the reconciler", "sandbox_id", s.ID, "error", err)
	}
}

// RemoveClaimed removes the member that a sandbox has claimed and left. What fails is left to the reconciler.
func (p *Placer) RemoveClaimed(ctx context.Context, s *farm.Sandbox) {
	m, err := p.store.Member(ctx, s.ID)
	if err != nil || m.Node != p.node.ID() || m.Container == "" {
		return
	}
	if taken, err := p.DropMember(ctx, s.ID, store.MemberClaimed); err == nil && taken {
		p.removeMember(ctx, *m)
	}
}

// makeRoom removes an idle member if a create fits without the idle ones. It reports whether there was one. Where that is not enough, or the create must
// leave the room to another one, they stay: the pool would be filled and evicted as long as it waits.
func (p *Placer) makeRoom(ctx context.Context, own store.NodeCapacity, want farm.Capacity) (bool, error) {
	members, err := p.RefreshPool(ctx)
	if err != nil {
		return false, err
	}
	used := own.Reserved.Plus(want)
	if used.Within(own.Capacity) || !used.Minus(p.pool.reserved()).Within(own.Capacity) {
		return false, nil
	}
	for _, m := range members {
		if m.State != store.MemberIdle {
			continue
		}
		taken, err := p.DropMember(ctx, m.ID, store.MemberIdle)
		if err != nil {
			return false, err
		}
		if taken { // otherwise it was claimed just now
			p.metrics.left.WithLabelValues(LeftRoom).Inc()
			p.removeMember(ctx, m)
			return true, nil
		}
	}
	return false, nil
}

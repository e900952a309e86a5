package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// errPoolFull says that a member found no room on the node: it waits, and is no error of anybody.
var errPoolFull = errors.New("the node has no room for another member of the pool")

// warmModules is what kernels of members have imported, where their image has it.
func warmModules() []string { return []string{"numpy", "pandas", "matplotlib.pyplot"} }

// fill starts what is missing, a few side by side, and nothing while creates wait or are started: they need the engine more.
func (w *Worker) fill(ctx context.Context, have map[string]int) error {
	missing := w.pool.missing(have, w.now())
	if len(missing) == 0 {
		return nil
	}
	waiting, err := w.store.Waiting(ctx, farm.QueueCPU)
	if err != nil || waiting > 0 {
		return err
	}
	for _, image := range missing {
		id := farm.NewID(farm.SandboxPrefix)
		if !w.pool.fillBegins(id, w.cfg.PoolFill) {
			return nil
		}
		w.background.Go(func() { //nolint:contextcheck // it outlives the look
			err := w.addMember(w.base, id, image)
			w.pool.fillEnded(id, err, w.now())
			switch {
			case err == nil:
				w.pool.stir()
			case errors.Is(err, errPoolFull), w.base.Err() != nil:
			default:
				w.seen.poolErrors.Inc()
				w.log.WarnContext(w.base, "no sandbox was added to the warm pool; it is tried again", "image", image, "error", err)
			}
		})
	}
	return nil
}

// missing lists the images of members that are to be started, none while fills pause or creates are started. Right after a claim
// only images without any member are filled: a start takes the cores that the next claim needs.
func (p *pool) missing(have map[string]int, now time.Time) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cold > 0 || now.Before(p.until) {
		return nil
	}
	since := now.Sub(p.claimed) // negative when clocks differ
	quiet := since < 0 || since >= fillQuiet
	var out []string
	for image, target := range p.targets {
		if !quiet && p.idle[image] > 0 {
			continue
		}
		for range target - have[image] {
			out = append(out, image)
		}
	}
	return out
}

// fillBegins notes a fill, unless there are as many as may be.
func (p *pool) fillBegins(id string, most int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.filling) >= most {
		return false
	}
	p.filling[id] = true
	return true
}

// fillEnded notes the end of a fill. After one that failed there is a pause.
func (p *pool) fillEnded(id string, err error, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.filling, id)
	if err == nil {
		p.pause, p.until = 0, time.Time{}
		return
	}
	p.pause = min(max(2*p.pause, fillPause), fillRest)
	p.until = now.Add(p.pause)
}

// addMember starts a member and offers it to creates.
func (w *Worker) addMember(ctx context.Context, id, image string) error {
	ctx, done := context.WithTimeout(ctx, 2*w.cfg.CreateTimeout) // imports come on top of a create
	defer done()
	version, err := w.memberVersion(ctx, image)
	if err != nil {
		return err
	}
	l := w.cfg.Limits
	m := store.Member{
		ID: id, Node: w.node, Image: image, Network: w.memberNetwork(), Version: version, Worker: w.id, State: store.MemberStarting,
		Resources: farm.Resources{MemoryMB: l.Memory.Default, CPUs: l.CPUs.Default, PIDs: l.PIDs.Default, DiskMB: l.Disk.Default},
	}
	ok, nodes, err := w.store.Reserve(ctx, store.ReserveRequest{Node: w.node, Capacity: w.room.size(), Sandbox: farm.Ref{ID: id}, Want: m.Resources.Capacity()})
	if err != nil {
		return err
	}
	w.room.learn(nodes)
	if !ok {
		return errPoolFull
	}
	err = w.store.BeginMember(ctx, m)
	if err == nil {
		err = w.startMember(ctx, &m)
	}
	if err == nil {
		err = w.store.MemberReady(ctx, m)
	}
	if err != nil {
		_, dropErr := w.dropMember(ctx, id, store.MemberStarting)
		w.scrap(ctx, m)
		return errors.Join(err, dropErr)
	}
	w.seen.poolStarted.Inc()
	w.log.InfoContext(ctx, "sandbox joined the warm pool", "sandbox_id", id, "image", image)
	return nil
}

// memberNetwork is the network of members: that of creates which name none.
func (w *Worker) memberNetwork() farm.Network {
	if w.deps.Index == nil {
		return farm.NetworkNone
	}
	return farm.NetworkPackages
}

// memberBox is a member as the sandbox that it may become.
func (w *Worker) memberBox(m store.Member) *farm.Sandbox {
	return &farm.Sandbox{
		ID: m.ID, Tenant: m.Tenant, Node: m.Node, Container: m.Container,
		Spec: farm.SandboxSpec{Image: m.Image, Network: m.Network, Resources: m.Resources},
	}
}

// startMember brings a member's container and its kernel up, as those of a sandbox that nobody asked anything special of.
func (w *Worker) startMember(ctx context.Context, m *store.Member) error {
	image, err := w.image(ctx, m.Image)
	if err != nil {
		return err
	}
	box := w.memberBox(*m)
	spec := w.containerSpec(box, image)
	spec.Labels = map[string]string{labelMember: m.Image, labelEpoch: w.epoch.get()}
	if m.Container, err = w.engine.Create(ctx, spec); err != nil {
		return fmt.Errorf("create container: %w", err)
	}
	if err := w.engine.Start(ctx, m.Container); err != nil {
		return fmt.Errorf("start container: %w", err)
	}
	box.Container = m.Container
	c, err := w.link(ctx, box)
	if err != nil {
		return causeOr(ctx, err)
	}
	switch err := c.StartKernel(ctx, "default", "python"); farm.CodeOf(err) {
	case "":
	case farm.CodeInvalid, farm.CodeNotFound: // the image has none: the container alone saves some time
		return nil
	default:
		return causeOr(ctx, fmt.Errorf("start kernel: %w", err))
	}
	if _, err := c.WarmKernel(ctx, "default", warmModules()...); err != nil {
		return causeOr(ctx, fmt.Errorf("warm kernel: %w", err))
	}
	return nil
}

// dropMember forgets a member that is in a state, and reports whether it was. Whoever forgot it removes it.
func (w *Worker) dropMember(ctx context.Context, id string, states ...store.MemberState) (bool, error) {
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer done()
	err := w.store.DropMember(ctx, id, states...)
	if errors.Is(err, store.ErrNoMember) {
		return false, nil
	}
	return err == nil, err
}

// scrap removes a member that is forgotten. What fails is left to the reconciler.
func (w *Worker) scrap(ctx context.Context, m store.Member) {
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer done()
	w.links.drop(m.ID)
	if err := w.engine.Remove(ctx, w.containerOf(w.memberBox(m))); err != nil {
		w.log.WarnContext(ctx, "container of the warm pool is left to the reconciler", "sandbox_id", m.ID, "error", err)
	}
	w.leaveRoom(ctx, farm.Ref{ID: m.ID})
}

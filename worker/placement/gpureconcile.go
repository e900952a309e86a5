package placement

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// ReconcileGPUs brings the leases of this node and its containers together: the devices of a container are leased to its sandbox,
// and those of an ended sandbox without a container are free. No device is leased before the first call.
func (p *Placer) ReconcileGPUs(ctx context.Context) error {
	if !p.gpus.any() {
		return nil
	}
	now, err := p.store.GPUs(ctx, p.node.ID()) // before the list, which then has every container that is bound to one of these leases
	if err != nil {
		return err
	}
	containers, err := p.engine.List(ctx)
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	// A running container has its devices. One that never started may have been made for the same devices, under a lease that has ended.
	slices.SortStableFunc(containers, runningFirst)
	var errs []error
	contained := map[string]bool{}
	for _, c := range containers {
		contained[c.SandboxID] = true
		errs = append(errs, p.restoreGPUs(ctx, now, c))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for sandbox, l := range sandboxesOf(now) {
		if contained[sandbox.ID] {
			continue
		}
		over, err := p.leaseIsOver(ctx, l)
		errs = append(errs, err)
		if over {
			p.log.InfoContext(ctx, "GPUs of a sandbox that has no container are free", "sandbox_id", sandbox.ID)
			p.returnLease(ctx, l)
		}
	}
	now, err = p.store.OpenGPUs(ctx, p.node.ID())
	if err == nil {
		p.gpus.update(now)
		p.deps.Wake()
	}
	return errors.Join(append(errs, err)...)
}

// runningFirst orders containers: running ones first.
func runningFirst(a, b farm.Container) int {
	switch {
	case a.Running == b.Running:
		return 0
	case a.Running:
		return -1
	default:
		return 1
	}
}

// restoreGPUs records the leases of a container whose leases were lost.
func (p *Placer) restoreGPUs(ctx context.Context, now store.GPUs, c farm.Container) error {
	sandbox := farm.Ref{Tenant: c.Tenant, ID: c.SandboxID}
	missing := false
	for _, id := range c.GPUs {
		missing = missing || now.Leases[id].Sandbox != sandbox
	}
	if !missing {
		return nil
	}
	s, err := p.store.Sandbox(ctx, sandbox)
	if farm.CodeOf(err) == farm.CodeNotFound || err == nil && (s.State == farm.SandboxClosing || s.State.Final()) {
		return nil // it is being removed; until then CheckDevices sees its devices
	}
	if err != nil {
		return fmt.Errorf("read sandbox: %w", err)
	}
	_, err = p.store.RestoreGPUs(ctx, p.node.ID(), sandbox, s.Generation, c.GPUs)
	if farm.CodeOf(err) == farm.CodeConflict && !c.Running { // made for a lease that has ended: CheckDevices does not let it start
		if err := p.engine.Remove(ctx, c.ID); err != nil {
			return fmt.Errorf("remove container: %w", err)
		}
		p.ReleaseGPUs(ctx, s)
		return nil
	}
	return err
}

// leaseIsOver reports whether a lease without a container can end.
func (p *Placer) leaseIsOver(ctx context.Context, l store.GPULease) (bool, error) {
	s, err := p.store.Sandbox(ctx, l.Sandbox)
	switch {
	case farm.CodeOf(err) == farm.CodeNotFound:
		return true, nil
	case err != nil:
		return false, fmt.Errorf("read sandbox: %w", err)
	case s.State.Final(), l.Generation > 0 && l.Generation < s.Generation:
		return true, nil
	case s.Node == p.node.ID():
		return false, nil // its job is starting it here
	case s.Node != "":
		return true, nil // its job moved to another node
	case p.deps.Now().Sub(l.At) > reservationGrace:
		return true, nil
	}
	alive, err := p.store.Alive(ctx, l.Worker) // the job of a dead worker may be taken over on another node
	return err == nil && !alive, err
}

// RefreshGPUs reads the leases, ends those of dead workers for sandboxes that they did not start, and checks whether jobs wait for a
// GPU.
func (p *Placer) RefreshGPUs(ctx context.Context) error {
	if !p.gpus.any() {
		return nil
	}
	now, err := p.store.GPUs(ctx, p.node.ID())
	if err != nil {
		return err
	}
	p.gpus.update(now)
	for sandbox, l := range sandboxesOf(now) {
		if l.Started || l.Worker == p.deps.WorkerID {
			continue
		}
		alive, err := p.store.Alive(ctx, l.Worker)
		if err != nil {
			return err
		}
		s, err := p.store.Sandbox(ctx, sandbox)
		if !alive && err == nil && s.Node != p.node.ID() {
			p.returnLease(ctx, l)
		}
	}
	return p.refreshWaiting(ctx)
}

// refreshWaiting decides whether creates without a GPU are left to other workers.
func (p *Placer) refreshWaiting(ctx context.Context) error {
	var queues []string
	for name := range p.gpus.queues() {
		queues = append(queues, name)
	}
	waiting, err := p.deps.Backlog.Waiting(ctx, queues...)
	if err != nil || waiting == 0 {
		p.gpus.setYields(false, false)
		return err
	}
	workers, err := p.store.Workers(ctx)
	if err != nil {
		return err
	}
	others := false
	for _, other := range workers {
		others = others || other.Problem == "" && !other.Draining && len(other.GPUs) == 0
	}
	p.gpus.setYields(true, others)
	return nil
}

// sandboxesOf returns one lease of each sandbox that has any.
func sandboxesOf(now store.GPUs) map[farm.Ref]store.GPULease {
	out := map[farm.Ref]store.GPULease{}
	for _, l := range now.Leases {
		out[l.Sandbox] = l
	}
	return out
}

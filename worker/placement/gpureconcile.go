package placement

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// ReconcileGPUs makes the leases of this node fit its containers: what a container has is leased to its sandbox, and what
// a sandbox has that has ended, and has no container, is free. Then devices may be leased.
func (p *Placer) ReconcileGPUs(ctx context.Context) error {
	if !p.gpus.any() {
		return nil
	}
	now, err := p.store.GPUs(ctx, p.node.ID()) // before the list: a container that is bound to a lease of now is in it
	if err != nil {
		return err
	}
	containers, err := p.engine.List(ctx)
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	// What runs has its devices. One that never started may have been made for the same ones, under a lease that was over.
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
			p.returnGPUs(ctx, sandbox, l.Fence)
		}
	}
	now, err = p.store.OpenGPUs(ctx, p.node.ID())
	if err == nil {
		p.gpus.learn(now)
		p.deps.Wake()
	}
	return errors.Join(append(errs, err)...)
}

// runningFirst orders containers.
func runningFirst(a, b engine.Container) int {
	switch {
	case a.Running == b.Running:
		return 0
	case a.Running:
		return -1
	default:
		return 1
	}
}

// restoreGPUs writes down the devices of a container whose leases were lost.
func (p *Placer) restoreGPUs(ctx context.Context, now store.GPUs, c engine.Container) error {
	sandbox := farm.Ref{Tenant: c.Tenant, ID: c.SandboxID}
	missing := false
	for _, id := range c.GPUs() {
		missing = missing || now.Leases[id].Sandbox != sandbox
	}
	if !missing {
		return nil
	}
	s, err := p.store.Sandbox(ctx, sandbox)
	if farm.CodeOf(err) == farm.CodeNotFound || err == nil && (s.State == farm.SandboxClosing || s.State.Final()) {
		return nil // it is going; who starts a container looks at it as long as it is there
	}
	if err != nil {
		return fmt.Errorf("read sandbox: %w", err)
	}
	_, err = p.store.RestoreGPUs(ctx, p.node.ID(), sandbox, c.GPUs())
	if farm.CodeOf(err) == farm.CodeConflict && !c.Running { // made for a lease that was over: guard will not let it start
		if err := p.engine.Remove(ctx, c.ID); err != nil {
			return fmt.Errorf("remove container: %w", err)
		}
		p.returnGPUs(ctx, sandbox, 0)
		return nil
	}
	return err
}

// leaseIsOver reports whether a lease without a container is nobody's any more.
func (p *Placer) leaseIsOver(ctx context.Context, l store.GPULease) (bool, error) {
	s, err := p.store.Sandbox(ctx, l.Sandbox)
	switch {
	case farm.CodeOf(err) == farm.CodeNotFound:
		return true, nil
	case err != nil:
		return false, fmt.Errorf("read sandbox: %w", err)
	case s.State.Final():
		return true, nil
	case s.Node == p.node.ID():
		return false, nil // its job goes on here
	case s.Node != "":
		return true, nil // its job left this node
	case p.deps.Now().Sub(l.At) > promisePatience:
		return true, nil
	}
	alive, err := p.store.Alive(ctx, l.Worker) // else its job may go on at another node
	return err == nil && !alive, err
}

// RefreshGPUs renews what is known of the leases, frees what dead workers had for sandboxes that they did not begin, and
// sees whether jobs wait for a GPU.
func (p *Placer) RefreshGPUs(ctx context.Context) error {
	if !p.gpus.any() {
		return nil
	}
	now, err := p.store.GPUs(ctx, p.node.ID())
	if err != nil {
		return err
	}
	p.gpus.learn(now)
	for sandbox, l := range sandboxesOf(now) {
		if l.Bound || l.Worker == p.deps.WorkerID {
			continue
		}
		alive, err := p.store.Alive(ctx, l.Worker)
		if err != nil {
			return err
		}
		s, err := p.store.Sandbox(ctx, sandbox)
		if !alive && err == nil && s.Node != p.node.ID() {
			p.returnGPUs(ctx, sandbox, l.Fence)
		}
	}
	return p.refreshWaiting(ctx)
}

// refreshWaiting sees whether creates that need no GPU are to be left to others.
func (p *Placer) refreshWaiting(ctx context.Context) error {
	var queues []string
	for name := range p.gpus.queues() {
		queues = append(queues, name)
	}
	waiting, err := p.deps.Backlog.Waiting(ctx, queues...)
	if err != nil || waiting == 0 {
		p.gpus.yield(false, false)
		return err
	}
	workers, err := p.store.Workers(ctx)
	if err != nil {
		return err
	}
	others := false
	for _, other := range workers {
		others = others || other.Problem == "" && len(other.GPUs) == 0
	}
	p.gpus.yield(true, others)
	return nil
}

// sandboxesOf gives one lease of each sandbox that has any.
func sandboxesOf(now store.GPUs) map[farm.Ref]store.GPULease {
	out := map[farm.Ref]store.GPULease{}
	for _, l := range now.Leases {
		out[l.Sandbox] = l
	}
	return out
}

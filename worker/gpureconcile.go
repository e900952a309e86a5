package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// reconcileGPUs makes the leases of this node fit its containers: what a container has is leased to its sandbox, and what
// a sandbox has that has ended, and has no container, is free. Then devices may be leased.
func (w *Worker) reconcileGPUs(ctx context.Context) error {
	if !w.gpus.any() {
		return nil
	}
	now, err := w.store.GPUs(ctx, w.node) // before the list: a container that is bound to a lease of now is in it
	if err != nil {
		return err
	}
	containers, err := w.engine.List(ctx)
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	// What runs has its devices. One that never started may have been made for the same ones, under a lease that was over.
	slices.SortStableFunc(containers, runningFirst)
	var errs []error
	contained := map[string]bool{}
	for _, c := range containers {
		contained[c.SandboxID] = true
		errs = append(errs, w.adoptGPUs(ctx, now, c))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for sandbox, l := range sandboxesOf(now) {
		if contained[sandbox.ID] {
			continue
		}
		over, err := w.leaseIsOver(ctx, l)
		errs = append(errs, err)
		if over {
			w.log.InfoContext(ctx, "GPUs of a sandbox that has no container are free", "sandbox_id", sandbox.ID)
			w.returnGPUs(ctx, sandbox, l.Fence)
		}
	}
	now, err = w.store.OpenGPUs(ctx, w.node)
	if err == nil {
		w.gpus.learn(now)
		w.wakeQueues()
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

// adoptGPUs writes down the devices of a container whose leases were lost.
func (w *Worker) adoptGPUs(ctx context.Context, now store.GPUs, c engine.Container) error {
	sandbox := farm.Ref{Tenant: c.Tenant, ID: c.SandboxID}
	missing := false
	for _, id := range c.GPUs() {
		missing = missing || now.Leases[id].Sandbox != sandbox
	}
	if !missing {
		return nil
	}
	s, err := w.store.Sandbox(ctx, sandbox)
	if farm.CodeOf(err) == farm.CodeNotFound || err == nil && (s.State == farm.SandboxClosing || s.State.Final()) {
		return nil // it is going; who starts a container looks at it as long as it is there
	}
	if err != nil {
		return fmt.Errorf("read sandbox: %w", err)
	}
	_, err = w.store.RestoreGPUs(ctx, w.node, sandbox, c.GPUs())
	if farm.CodeOf(err) == farm.CodeConflict && !c.Running { // made for a lease that was over: guard will not let it start
		if err := w.engine.Remove(ctx, c.ID); err != nil {
			return fmt.Errorf("remove container: %w", err)
		}
		w.returnGPUs(ctx, sandbox, 0)
		return nil
	}
	return err
}

// leaseIsOver reports whether a lease without a container is nobody's any more.
func (w *Worker) leaseIsOver(ctx context.Context, l store.GPULease) (bool, error) {
	s, err := w.store.Sandbox(ctx, l.Sandbox)
	switch {
	case farm.CodeOf(err) == farm.CodeNotFound:
		return true, nil
	case err != nil:
		return false, fmt.Errorf("read sandbox: %w", err)
	case s.State.Final():
		return true, nil
	case s.Node == w.node:
		return false, nil // its job goes on here
	case s.Node != "":
		return true, nil // its job left this node
	case w.now().Sub(l.At) > promisePatience:
		return true, nil
	}
	alive, err := w.store.Alive(ctx, l.Worker) // else its job may go on at another node
	return err == nil && !alive, err
}

// lookAtGPUs renews what is known of the leases, frees what dead workers had for sandboxes that they did not begin, and
// sees whether jobs wait for a GPU.
func (w *Worker) lookAtGPUs(ctx context.Context) error {
	if !w.gpus.any() {
		return nil
	}
	now, err := w.store.GPUs(ctx, w.node)
	if err != nil {
		return err
	}
	w.gpus.learn(now)
	for sandbox, l := range sandboxesOf(now) {
		if l.Bound || l.Worker == w.id {
			continue
		}
		alive, err := w.store.Alive(ctx, l.Worker)
		if err != nil {
			return err
		}
		s, err := w.store.Sandbox(ctx, sandbox)
		if !alive && err == nil && s.Node != w.node {
			w.returnGPUs(ctx, sandbox, l.Fence)
		}
	}
	return w.lookAtWaiting(ctx)
}

// lookAtWaiting sees whether creates that need no GPU are to be left to others.
func (w *Worker) lookAtWaiting(ctx context.Context) error {
	var queues []string
	for name := range w.gpus.queues() {
		queues = append(queues, name)
	}
	waiting, err := w.dispatch.Waiting(ctx, queues...)
	if err != nil || waiting == 0 {
		w.gpus.yield(false, false)
		return err
	}
	workers, err := w.store.Workers(ctx)
	if err != nil {
		return err
	}
	others := false
	for _, other := range workers {
		others = others || other.Problem == "" && len(other.GPUs) == 0
	}
	w.gpus.yield(true, others)
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

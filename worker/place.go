package worker

import (
	"context"
	"errors"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// gate decides whether tasks are taken off a queue now. It is asked often, and answers from memory.
func (w *Worker) gate(queue string) bool {
	if model, ok := farm.GPUQueue(queue); ok {
		return w.room.fits() && w.gpus.open(queue, model)
	}
	if queue == farm.QueueCPU {
		return !w.gpus.yielding() && w.room.open()
	}
	return true
}

// place finds what a new sandbox needs of this node. It reports whether all of it is there; what is not left to the
// sandbox is given back.
func (w *Worker) place(ctx context.Context, r *run) (bool, error) {
	if !fresh(r) {
		return true, nil
	}
	if ok, err := w.takeGPUs(ctx, r); !ok || err != nil {
		return false, err
	}
	ok, err := w.takeRoom(ctx, r)
	if !ok && r.Sandbox.Node != w.node {
		w.leaveGPUs(ctx, r.Sandbox)
	}
	if err == nil && !ok {
		err = w.unpool(ctx, r)
	}
	return ok, err
}

// fresh reports whether a job has a sandbox to start.
func fresh(r *run) bool {
	return (r.Job.Kind == farm.KindCreate || r.Job.Kind == farm.KindRun) && r.Sandbox != nil &&
		(r.Sandbox.State == farm.SandboxQueued || r.Sandbox.State == farm.SandboxStarting)
}

// giveBack returns a job that has no place here to its queue. One that was cancelled meanwhile ends.
func (w *Worker) giveBack(ctx context.Context, r *run) error {
	returned, err := w.release(ctx, r)
	if returned {
		w.seen.returned.Inc()
		w.log.DebugContext(ctx, "no room for the sandbox here; its job waits", "job_id", r.Job.ID, "sandbox_id", r.Job.SandboxID)
	}
	return err
}

// release returns a job to its queue, and reports whether it waits there now.
func (w *Worker) release(ctx context.Context, r *run) (returned bool, err error) {
	err = w.persist(ctx, func(ctx context.Context) error { return w.dispatch.Requeue(ctx, r.Job.Ref(), r.Job.Attempt) })
	switch {
	case errors.Is(err, store.ErrCanceled):
		_, err = w.finish(ctx, r, w.canceled(ctx, r.Sandbox))
		return false, err
	case errors.Is(err, store.ErrFenced):
		return false, nil
	default:
		return err == nil, err
	}
}

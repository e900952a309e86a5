package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/nvidia"
	"github.com/sandfarm/sandfarm/internal/store"
)

// errDevicesGone ends a start whose devices are another sandbox's. It never happens unless Redis lost what it had.
var errDevicesGone = farm.Errorf(farm.CodeConflict, "The GPUs of the sandbox were given away while it started. Create it again.")

// findGPUs finds out which devices this node offers: those of the setting, or else those that the driver knows, if the
// engine can give them to containers.
func (w *Worker) findGPUs(ctx context.Context) error {
	devices, listed, err := listedGPUs(w.cfg.GPUs)
	if err != nil {
		return err
	}
	index := map[string]string{}
	if !listed {
		found, err := nvidia.Devices(ctx)
		if err != nil { // a broken driver is no reason not to serve what needs none
			w.log.WarnContext(ctx, "no GPU is offered: the driver does not answer (see sandfarm doctor)", "error", err)
			return nil
		}
		for _, d := range found {
			if d.MIG {
				w.log.WarnContext(ctx, "a GPU is cut into MIG instances and not offered: list those in worker.gpus", "device", d.ID)
				continue
			}
			devices, index[d.ID] = append(devices, d.GPUDevice), d.Index
		}
	}
	if len(devices) == 0 {
		return nil
	}
	support, err := w.engine.GPUSupport(ctx)
	if err != nil {
		return fmt.Errorf("ask the engine for its GPU driver: %w", err)
	}
	cdi := map[string]string{}
	if support.Driver == engine.DriverCDI {
		devices = slices.DeleteFunc(devices, func(d farm.GPUDevice) bool {
			cdi[d.ID] = support.CDIName(d.ID, index[d.ID])
			return cdi[d.ID] == ""
		})
	}
	if support.Driver == "" || len(devices) == 0 {
		w.log.WarnContext(ctx, "no GPU is offered: the engine cannot give them to containers (see sandfarm doctor)")
		return nil
	}
	w.gpus.set(devices, support, cdi)
	w.log.InfoContext(ctx, "GPUs are offered", "devices", len(devices), "driver", support.Driver)
	return nil
}

// takeGPUs gets a new sandbox the devices that it has asked for. It reports whether it has them; none asked for is all.
func (w *Worker) takeGPUs(ctx context.Context, r *run) (bool, error) {
	want := r.Sandbox.Spec.GPU
	if !want.Wanted() {
		return true, nil
	}
	var ok bool
	var now store.GPUs
	err := w.persist(ctx, func(ctx context.Context) (err error) {
		ok, now, err = w.store.LeaseGPUs(ctx, store.GPURequest{
			Node: w.node, Sandbox: ref(r.Sandbox), Worker: w.id, Count: want.Count, Devices: w.gpus.of(want.Model), Since: r.Job.CreatedAt,
		})
		return err
	})
	if err != nil {
		return false, causeOr(ctx, err)
	}
	w.gpus.learn(now)
	if !ok {
		w.gpus.missed(r.Job.Queue)
		// One that has begun here has nowhere else to go: without its devices it fails where it would be equipped.
		return r.Sandbox.Node == w.node, nil
	}
	devices, fence := now.Of(r.Sandbox.ID)
	w.gpus.keep(r.Sandbox.ID, gpuLease{devices: devices, fence: fence})
	w.gpus.placed(r.Job.Queue)
	return true, nil
}

// leaveGPUs gives back what a sandbox has whose container is gone, or was never made. What fails is left to the reconciler.
func (w *Worker) leaveGPUs(ctx context.Context, s *farm.Sandbox) {
	if !s.Spec.GPU.Wanted() {
		return
	}
	w.gpus.forget(s.ID)
	w.returnGPUs(ctx, ref(s), 0)
}

// returnGPUs gives back what a sandbox has under a fence; 0: under any.
func (w *Worker) returnGPUs(ctx context.Context, sandbox farm.Ref, fence int64) {
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer done()
	now, err := w.store.ReturnGPUs(ctx, w.node, sandbox, fence)
	switch {
	case errors.Is(err, store.ErrFenced):
	case err != nil:
		w.log.WarnContext(ctx, "GPUs of a sandbox are left to the reconciler", "sandbox_id", sandbox.ID, "error", err)
	default:
		w.gpus.learn(now)
	}
}

// equip puts a sandbox's devices into the description of its container.
func (w *Worker) equip(s *farm.Sandbox, spec *engine.Spec) error {
	if !s.Spec.GPU.Wanted() {
		return nil
	}
	if spec.GPUs = w.gpus.kept(s.ID).devices; len(spec.GPUs) == 0 {
		return errDevicesGone
	}
	for _, id := range spec.GPUs {
		if name := w.gpus.cdi[id]; name != "" {
			spec.CDI = append(spec.CDI, name)
		}
	}
	return nil
}

// guard decides whether a container that was made may start with its devices. It is made already: whoever looks at the
// engine from now on sees it, so of two containers that have the same device at least one start sees the other. And the
// lease must still be under the fence of this start.
func (w *Worker) guard(ctx context.Context, s *farm.Sandbox) error {
	if !s.Spec.GPU.Wanted() {
		return nil
	}
	lease := w.gpus.kept(s.ID)
	containers, err := w.engine.List(ctx)
	if err != nil {
		return err
	}
	for _, c := range containers {
		if c.SandboxID == s.ID {
			if !slices.Equal(c.GPUs(), lease.devices) {
				err = errDevicesGone // it was made for a lease that is over
			}
			continue
		}
		for _, id := range c.GPUs() {
			if slices.Contains(lease.devices, id) {
				w.log.ErrorContext(ctx, "a GPU is in use that was leased to another sandbox", "device", id, "sandbox_id", s.ID, "other", c.SandboxID)
				err = errDevicesGone
			}
		}
	}
	if err != nil {
		return err
	}
	err = w.persist(ctx, func(ctx context.Context) error { return w.store.BindGPUs(ctx, w.node, ref(s), lease.fence) })
	if errors.Is(err, store.ErrFenced) {
		return errDevicesGone
	}
	return err
}

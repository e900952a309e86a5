package engine

import (
	"cmp"
	"context"

	"github.com/docker/docker/api/types/container"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// updateTimeout bounds an update of limits: the runtime writes a few files of the cgroup.
const updateTimeout = startTimeout

// Update sets the limits of memory, cores and processes of a sandbox's running container; zero fields take the farm's defaults, as with
// Create. The sizes of its writable directories do not change. If more memory is in use than the new limit, the kernel reclaims it, and
// kills processes if it must. runtime is the OCI runtime of the container; empty: that of sandboxes that name none. CodeNotFound when the container is gone,
// CodeConflict when it does not run, or when its runtime is gVisor.
func (e *Engine) Update(ctx context.Context, id, runtime string, r farm.Resources) error {
	cpus, err := e.cores(ctx)
	if err != nil {
		return err
	}
	if farm.GVisor(cmp.Or(runtime, e.ownRuntime())) { // the kernel of the sandbox has read its memory and its limit of processes at its start
		return farm.Conflictf("gVisor cannot change the limits of a running sandbox; create another one")
	}
	r = (&Spec{Resources: r}).resources(cpus)
	return e.call(ctx, updateTimeout, "update container", func(ctx context.Context) error {
		_, err := e.cli.ContainerUpdate(ctx, id, updateConfig(r))
		return err
	})
}

// updateConfig are the new limits of a container. DiskMB has no effect.
func updateConfig(r farm.Resources) container.UpdateConfig {
	pids := int64(r.PIDs)
	return container.UpdateConfig{Resources: container.Resources{
		Memory: int64(r.MemoryMB) << 20, MemorySwap: int64(r.MemoryMB) << 20, NanoCPUs: int64(r.CPUs * 1e9), PidsLimit: &pids,
	}}
}

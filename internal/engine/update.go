package engine

import (
	"context"

	"github.com/docker/docker/api/types/container"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// updateTimeout bounds a change of limits: the runtime writes a few files of the cgroup.
const updateTimeout = startTimeout

// Update gives a sandbox's running container other limits of memory, cores and processes; zero fields take the farm's
// defaults, as with Create. What its writable places hold stays as it was made. Less memory than is in use makes the kernel
// take it back, by a kill where it must. CodeNotFound when the container is gone, CodeConflict when it does not run.
func (e *Engine) Update(ctx context.Context, id string, r farm.Resources) error {
	cpus, err := e.cores(ctx)
	if err != nil {
		return err
	}
	r = (&Spec{Resources: r}).resources(cpus)
	pids := int64(r.PIDs)
	return e.call(ctx, updateTimeout, "update container", func(ctx context.Context) error {
		_, err := e.cli.ContainerUpdate(ctx, id, container.UpdateConfig{Resources: container.Resources{
			Memory: int64(r.MemoryMB) << 20, MemorySwap: int64(r.MemoryMB) << 20, NanoCPUs: int64(r.CPUs * 1e9), PidsLimit: &pids,
		}})
		return err
	})
}

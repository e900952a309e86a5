package engine

import (
	"context"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// BuildRuntime is the OCI runtime of a build's network: gVisor has a network of its own, which a build cannot share.
const BuildRuntime = "runc"

// buildLimits are the limits of a build's network. Its program only copies.
var buildLimits = farm.Resources{MemoryMB: 512, CPUs: 2, PIDs: 128, DiskMB: 16} //nolint:gochecknoglobals // a constant

// CreateBuildNetwork creates, without starting it, a container whose network the steps of a build can share: BuildNetwork of its id. The
// network has loopback alone. command is a program of the agent's volume, and decides what can be reached there. The container is no
// sandbox, has the rights of one, and the engine removes it when command ends. CodeNotFound: no such image or volume.
func (e *Engine) CreateBuildNetwork(ctx context.Context, image, agentVolume string, command []string) (id string, err error) {
	return e.createHelper(ctx, "", e.buildNetwork(image, agentVolume, command))
}

// BuildNetwork is the network of a container for BuildSpec.
func BuildNetwork(id string) string { return "container:" + id }

func (e *Engine) buildNetwork(image, agentVolume string, command []string) container.CreateRequest {
	made := e.helper(image, "", container.HostConfig{
		ReadonlyRootfs: true, AutoRemove: true, Runtime: BuildRuntime,
		LogConfig: container.LogConfig{Type: "none"},
		Tmpfs:     tmpfs(Spec{UID: helperUID}, buildLimits),
		Resources: container.Resources{
			Memory: int64(buildLimits.MemoryMB) << 20, MemorySwap: int64(buildLimits.MemoryMB) << 20,
			NanoCPUs: int64(buildLimits.CPUs * 1e9), PidsLimit: new(int64(buildLimits.PIDs)),
		},
		Mounts: []mount.Mount{{
			Type: mount.TypeVolume, Source: agentVolume, Target: fillMount, ReadOnly: true,
			VolumeOptions: &mount.VolumeOptions{NoCopy: true},
		}},
	})
	made.Entrypoint, made.Cmd = command[:1], command[1:]
	made.Labels[LabelRole] = RoleBuild
	return made
}

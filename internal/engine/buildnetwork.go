package engine

import (
	"context"

	"github.com/docker/docker/api/types/container"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// BuildRuntime is the OCI runtime of a build's network: gVisor has a network of its own, which a build cannot share.
const BuildRuntime = "runc"

// buildLimits are the limits of a build's network. Its program only copies.
var buildLimits = farm.Resources{MemoryMB: 512, CPUs: 2, PIDs: 128, DiskMB: 16}

// CreateBuildNetwork creates, without starting it, a container whose network the steps of a build can share: BuildNetwork of its id. The
// network has loopback alone. command is a program of the agent's volume, and decides what can be reached there. The container is no
// sandbox, has the profile of one, and the engine removes it when command ends. CodeNotFound: no such image or volume.
func (e *Engine) CreateBuildNetwork(ctx context.Context, image, agentVolume string, command []string) (id string, err error) {
	cpus, err := e.cores(ctx)
	if err != nil {
		return "", err
	}
	s := buildSpec(agentVolume)
	return e.createHelper(ctx, "", e.buildNetwork(image, s, e.facts(s, cpus), command))
}

// BuildNetwork is the network of a container for BuildSpec.
func BuildNetwork(id string) string { return "container:" + id }

// buildSpec is what a build's network has of a sandbox.
func buildSpec(agentVolume string) Spec {
	return Spec{UID: helperUID, Runtime: BuildRuntime, Resources: buildLimits, AgentVolume: agentVolume, AgentMount: fillMount}
}

func (e *Engine) buildNetwork(image string, s Spec, facts hostFacts, command []string) container.CreateRequest {
	host := hostConfig(s, facts)
	host.AutoRemove = true
	made := e.helper(image, "", *host)
	made.Entrypoint, made.Cmd = command[:1], command[1:]
	made.Labels[LabelRole] = RoleBuild
	return made
}

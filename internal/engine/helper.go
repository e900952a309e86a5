package engine

import (
	"context"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
)

// Helpers are containers that exist for a moment and run no program of others: to fill a volume, or to find out what the engine can do. They have
// no rights that a sandbox lacks, and its seccomp profile.

// helperUser is the user of helpers.
const (
	helperUID  = 65534
	helperUser = "65534:65534"
)

// createHelper creates a helper; name may be empty.
func (e *Engine) createHelper(ctx context.Context, name string, helper container.CreateRequest) (string, error) {
	var made container.CreateResponse
	err := e.call(ctx, createTimeout, "create helper container", func(ctx context.Context) error {
		var err error
		made, err = e.cli.ContainerCreate(ctx, helper.Config, helper.HostConfig, nil, nil, name)
		return err
	})
	return made.ID, err
}

// fillHelper has a volume that is about to be filled. It is never started.
func (e *Engine) fillHelper(image, volume string) container.CreateRequest {
	return e.helper(image, "/never-started", container.HostConfig{Mounts: []mount.Mount{{
		Type: mount.TypeVolume, Source: volume, Target: fillMount + "/" + fillVolume, VolumeOptions: &mount.VolumeOptions{NoCopy: true},
	}}})
}

// nvidiaHelper requests the driver nvidia but no device. Its start fails at the program at the latest.
func (e *Engine) nvidiaHelper(image string) container.CreateRequest {
	helper := e.helper(image, "/not-there", container.HostConfig{Resources: container.Resources{
		DeviceRequests: []container.DeviceRequest{{Driver: DriverNvidia, Capabilities: [][]string{{"gpu"}}}},
	}})
	helper.Env = []string{visibleDevices + "=" + noDevices}
	return helper
}

// quotaHelper has a size limit. It is never started.
func (e *Engine) quotaHelper(image string) container.CreateRequest {
	return e.helper(image, "/never-started", container.HostConfig{StorageOpt: map[string]string{"size": "64M"}})
}

// runtimeHelper runs a program that ends at once, with an OCI runtime.
func (e *Engine) runtimeHelper(image, runtime string) container.CreateRequest {
	return e.helper(image, "/bin/true", container.HostConfig{Runtime: runtime})
}

func (e *Engine) helper(image, program string, host container.HostConfig) container.CreateRequest {
	host.NetworkMode, host.CapDrop, host.SecurityOpt = "none", []string{"ALL"}, []string{"no-new-privileges:true", "seccomp=" + e.seccomp}
	return container.CreateRequest{
		Config: &container.Config{
			Image: image, User: helperUser, Entrypoint: []string{program}, Labels: map[string]string{LabelNamespace: e.namespace, LabelRole: RoleHelper},
		},
		HostConfig: &host,
	}
}

package engine

import (
	"context"
	"fmt"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/volume"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// NodeID returns the id of this engine as a node. The first caller generates it, and it is kept in the engine's own data. (The
// engine's own id is the same for all engines of a host and for cloned machines.)
func (e *Engine) NodeID(ctx context.Context) (string, error) {
	name := e.namespace + "-node"
	labels, err := e.ensureVolume(ctx, name, map[string]string{LabelRole: RoleNode, LabelNode: farm.NewID(farm.NodePrefix)})
	if err != nil {
		return "", err
	}
	id := labels[LabelNode]
	if !farm.ValidID(farm.NodePrefix, id) {
		return "", fmt.Errorf("read node id: volume %s exists but holds no node id; remove it", name)
	}
	return id, nil
}

// ensureVolume creates a volume unless it exists, and returns its labels: those of the process that created it.
func (e *Engine) ensureVolume(ctx context.Context, name string, labels map[string]string) (map[string]string, error) {
	labels[LabelNamespace] = e.namespace
	err := e.call(ctx, createTimeout, "create volume", func(ctx context.Context) error {
		_, err := e.cli.VolumeCreate(ctx, volume.CreateOptions{Name: name, Labels: labels})
		return err
	})
	if err != nil {
		return nil, err
	}
	return e.volumeLabels(ctx, name)
}

// volumeLabels returns a volume's labels; CodeNotFound if the volume does not exist.
func (e *Engine) volumeLabels(ctx context.Context, name string) (map[string]string, error) {
	var labels map[string]string
	err := e.call(ctx, readTimeout, "inspect volume", func(ctx context.Context) error {
		v, err := e.cli.VolumeInspect(ctx, name)
		labels = v.Labels
		return err
	})
	return labels, err
}

// volumeWait is how long a volume that is in use is tried again: the engine drops a container from its lists before it lets go of the
// container's volumes, so RemoveAll may find them in use by one that another caller just removed.
const volumeWait = 10 * time.Second

// removeVolume removes a volume. A missing volume is not an error; one that is still in use after volumeWait is CodeConflict.
func (e *Engine) removeVolume(ctx context.Context, name string) error {
	return e.call(ctx, removeTimeout, "remove volume", func(ctx context.Context) error {
		tick := time.NewTicker(lookInterval)
		defer tick.Stop()
		over := time.After(volumeWait)
		for {
			err := e.cli.VolumeRemove(ctx, name, true)
			if cerrdefs.IsNotFound(err) {
				return nil
			}
			if !cerrdefs.IsConflict(err) {
				return err
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-over:
				return err
			case <-tick.C:
			}
		}
	})
}

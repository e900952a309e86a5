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

// removeVolume removes a volume. A missing volume is not an error. One that is in use is tried again for as long as wait, and is CodeConflict then.
func (e *Engine) removeVolume(ctx context.Context, name string, wait time.Duration) error {
	return e.call(ctx, removeTimeout, "remove volume", func(ctx context.Context) error {
		over := time.Now().Add(wait)
		return poll(ctx, func() (bool, error) {
			err := e.cli.VolumeRemove(ctx, name, true)
			switch {
			case cerrdefs.IsNotFound(err):
				return true, nil
			case cerrdefs.IsConflict(err) && !time.Now().After(over):
				return false, nil
			}
			return true, err
		})
	})
}

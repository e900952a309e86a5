package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/volume"
	"golang.org/x/sync/errgroup"

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

// removeVolume removes a volume. A missing volume is not an error; one that is in use is CodeConflict.
func (e *Engine) removeVolume(ctx context.Context, name string) error {
	return e.call(ctx, removeTimeout, "remove volume", func(ctx context.Context) error {
		if err := e.cli.VolumeRemove(ctx, name, true); !cerrdefs.IsNotFound(err) {
			return err
		}
		return nil
	})
}

// A note holds labels that a sandbox got after its container was created, since the labels of a container cannot be changed.
// It is an empty volume, so it exists as long as the engine's own data, and code in the sandbox cannot change it.

func (e *Engine) noteVolume(sandbox string) string { return e.namespace + "-note-" + sandbox }

// Note stores labels of a sandbox. It does not change an existing note.
func (e *Engine) Note(ctx context.Context, sandbox, tenant string, labels map[string]string) error {
	all := map[string]string{}
	maps.Copy(all, labels)
	maps.Copy(all, map[string]string{LabelNamespace: e.namespace, LabelRole: RoleNote, LabelSandbox: sandbox, LabelTenant: tenant})
	return e.call(ctx, createTimeout, "create note", func(ctx context.Context) error {
		_, err := e.cli.VolumeCreate(ctx, volume.CreateOptions{Name: e.noteVolume(sandbox), Labels: all})
		return err
	})
}

// Noted returns a container with the owner and the labels of its sandbox's note; CodeNotFound when there is none.
func (e *Engine) Noted(ctx context.Context, c farm.Container) (farm.Container, error) {
	labels, err := e.volumeLabels(ctx, e.noteVolume(c.SandboxID))
	if err == nil && (labels[LabelRole] != RoleNote || labels[LabelSandbox] != c.SandboxID) {
		err = farm.NotFoundf("there is no note of sandbox %s", c.SandboxID)
	}
	if err != nil {
		return c, err
	}
	c.Tenant, c.Generation, c.Labels = labels[LabelTenant], generationOf(labels), labels
	return c, nil
}

// Notes lists the sandboxes that have a note.
func (e *Engine) Notes(ctx context.Context) ([]string, error) {
	var list volume.ListResponse
	err := e.call(ctx, readTimeout, "list notes", func(ctx context.Context) error {
		var err error
		list, err = e.cli.VolumeList(ctx, volume.ListOptions{Filters: filters.NewArgs(
			filters.Arg("label", LabelNamespace+"="+e.namespace), filters.Arg("label", LabelRole+"="+RoleNote),
		)})
		return err
	})
	out := make([]string, 0, len(list.Volumes))
	for _, v := range list.Volumes {
		out = append(out, v.Labels[LabelSandbox])
	}
	return out, err
}

// RemoveNote removes a sandbox's note. A missing note is not an error.
func (e *Engine) RemoveNote(ctx context.Context, sandbox string) error {
	return e.removeVolume(ctx, e.noteVolume(sandbox))
}

// removeAtOnce is how many containers RemoveAll removes in parallel. More does not make an engine faster.
const removeAtOnce = 4

// removeWait is how long RemoveAll tries again while volumes are in use: the engine may still complete creates of a process that has ended, and it
// drops a container, which another caller removes, from its lists before it lets go of the container's volumes.
const removeWait = 30 * time.Second

// RemoveAll removes everything that this farm has in the engine: its containers, running or not, the agent's volumes, and notes. Images
// stay. The node's volume stays, too, so that the node keeps its id, unless volumes is set. RemoveAll continues after an error and joins
// the errors.
func (e *Engine) RemoveAll(ctx context.Context, volumes bool) error {
	roles := []string{RoleAgent, RoleNote}
	if volumes {
		roles = append(roles, RoleNode)
	}
	over := time.Now().Add(removeWait)
	var errs error
	_ = poll(ctx, func() (bool, error) { // what it misses is in errs
		errs = e.removeContainers(ctx)
		inUse := false
		for _, role := range roles {
			err := e.removeVolumes(ctx, role)
			inUse = inUse || farm.CodeOf(err) == farm.CodeConflict
			errs = errors.Join(errs, err)
		}
		return !inUse || time.Now().After(over), nil
	})
	if volumes {
		e.removeParentCgroup(ctx)
	}
	return errs
}

// removeContainers removes this farm's containers that the engine lists now.
func (e *Engine) removeContainers(ctx context.Context) error {
	found, err := e.containers(ctx)
	if err != nil {
		return err
	}
	var group errgroup.Group
	group.SetLimit(removeAtOnce)
	failed := make([]error, len(found))
	for i, c := range found {
		group.Go(func() error {
			failed[i] = e.Remove(ctx, c.ID)
			return nil
		})
	}
	_ = group.Wait() // the errors are in failed
	return errors.Join(failed...)
}

// removeVolumes removes this farm's volumes of one role. CodeConflict if one is in use.
func (e *Engine) removeVolumes(ctx context.Context, role string) error {
	var list volume.ListResponse
	err := e.call(ctx, readTimeout, "list volumes", func(ctx context.Context) error {
		var err error
		list, err = e.cli.VolumeList(ctx, volume.ListOptions{Filters: filters.NewArgs(
			filters.Arg("label", LabelNamespace+"="+e.namespace), filters.Arg("label", LabelRole+"="+role),
		)})
		return err
	})
	for _, v := range list.Volumes {
		err = errors.Join(err, e.removeVolume(ctx, v.Name))
	}
	return err
}

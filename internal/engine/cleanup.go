package engine

import (
	"context"
	"errors"
	"time"

	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/volume"
	"golang.org/x/sync/errgroup"
)

// removeAtOnce is how many containers RemoveAll removes in parallel. More does not make an engine faster.
const removeAtOnce = 4

// volumeWait is how long RemoveAll waits for volumes that are in use: the engine drops a container, which another caller removes, from its lists
// before it lets go of the container's volumes.
const volumeWait = 10 * time.Second

// RemoveAll removes everything that this farm has in the engine: its containers, running or not, the agent's volumes, and notes. Images
// stay. The node's volume stays, too, so that the node keeps its id, unless volumes is set. RemoveAll continues after an error and joins
// the errors.
func (e *Engine) RemoveAll(ctx context.Context, volumes bool) error {
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
	over := time.Now().Add(volumeWait)
	errs := append(failed, e.removeVolumes(ctx, RoleAgent, over), e.removeVolumes(ctx, RoleNote, over))
	if volumes {
		errs = append(errs, e.removeVolumes(ctx, RoleNode, over))
		e.removeParentCgroup(ctx)
	}
	return errors.Join(errs...)
}

// removeVolumes removes this farm's volumes of one role, and waits until over for those that are in use.
func (e *Engine) removeVolumes(ctx context.Context, role string, over time.Time) error {
	var list volume.ListResponse
	err := e.call(ctx, readTimeout, "list volumes", func(ctx context.Context) error {
		var err error
		list, err = e.cli.VolumeList(ctx, volume.ListOptions{Filters: filters.NewArgs(
			filters.Arg("label", LabelNamespace+"="+e.namespace), filters.Arg("label", LabelRole+"="+role),
		)})
		return err
	})
	if err != nil {
		return err
	}
	var errs []error
	for _, v := range list.Volumes {
		errs = append(errs, e.removeVolume(ctx, v.Name, time.Until(over)))
	}
	return errors.Join(errs...)
}

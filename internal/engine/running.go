package engine

import (
	"context"
	"errors"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
)

// Running reports whether any container runs with all of these labels, each written as name=value. The container may belong to another
// program. At least one label is needed.
func (e *Engine) Running(ctx context.Context, labels ...string) (bool, error) {
	if len(labels) == 0 {
		return false, errors.New("look for containers: at least one label is needed")
	}
	args := filters.NewArgs(filters.Arg("status", container.StateRunning))
	for _, label := range labels {
		args.Add("label", label)
	}
	running := false
	err := e.call(ctx, readTimeout, "look for containers", func(ctx context.Context) error {
		found, err := e.cli.ContainerList(ctx, container.ListOptions{Filters: args, Limit: 1})
		running = len(found) > 0
		return err
	})
	return running, err
}

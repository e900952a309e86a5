package engine

import (
	"context"
	"errors"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
)

// Present reports whether the engine has a container, running or not, of whoever, that carries all of these labels, each
// written as name=value. At least one is needed.
func (e *Engine) Present(ctx context.Context, labels ...string) (bool, error) {
	if len(labels) == 0 {
		return false, errors.New("look for containers: no label says which")
	}
	args := filters.NewArgs()
	for _, label := range labels {
		args.Add("label", label)
	}
	there := false
	err := e.call(ctx, readTimeout, "look for containers", func(ctx context.Context) error {
		found, err := e.cli.ContainerList(ctx, container.ListOptions{All: true, Filters: args, Limit: 1})
		there = len(found) > 0
		return err
	})
	return there, err
}

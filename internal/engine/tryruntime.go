package engine

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	tryTimeout = 30 * time.Second // for a program that ends at once
	tryEvery   = 50 * time.Millisecond
)

// TryRuntime runs /bin/true of an image in a container with an OCI runtime, and removes the container. The error says what the engine or the
// program reported.
func (e *Engine) TryRuntime(ctx context.Context, runtime, image string) (err error) {
	id, err := e.createHelper(ctx, "", e.runtimeHelper(image, runtime))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Remove(context.WithoutCancel(ctx), id)) }()
	if err := e.Start(ctx, id); err != nil {
		return err
	}
	ctx, done := context.WithTimeout(ctx, tryTimeout)
	defer done()
	for {
		c, err := e.Inspect(ctx, id)
		switch {
		case err != nil:
			return err
		case !c.Running && c.ExitCode != 0:
			return fmt.Errorf("/bin/true ended with exit code %d", c.ExitCode)
		case !c.Running:
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("/bin/true did not end: %w", ctx.Err())
		case <-time.After(tryEvery):
		}
	}
}

package farmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// cleanupTimeout bounds the removal of sandboxes. Whatever stops the caretaker has a limit as well.
const cleanupTimeout = 5 * time.Minute

// Teardown waits until ctx ends and then removes the sandboxes of this farm from the engine, unless a container with all
// labels in keepWhile still runs: that is a worker, which continues with them. The node keeps its name in the engine. Labels
// have the form name=value; at least one is required.
func Teardown(ctx context.Context, s *Settings, keepWhile []string, out io.Writer) (err error) {
	if s.Engine.Namespace == "" {
		return errors.New("engine.namespace is not set (SANDFARM_ENGINE_NAMESPACE): it says whose sandboxes to remove")
	}
	e, err := s.engine(s.Log.logger())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	say := newConsole(out)
	if _, err := e.Running(ctx, keepWhile...); err != nil { // fail now rather than at the end
		return fmt.Errorf("look for workers: %w", err)
	}
	say.line("waiting to remove the sandboxes of " + s.Engine.Namespace)
	<-ctx.Done()
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer done()
	running, err := e.Running(ctx, keepWhile...)
	if err != nil {
		return fmt.Errorf("look for workers: %w", err)
	}
	if running {
		say.line("a worker still runs: the sandboxes stay")
		return nil
	}
	if err := e.RemoveAll(ctx, false); err != nil {
		return fmt.Errorf("remove the sandboxes from the engine: %w", err)
	}
	say.line("no worker runs: removed every sandbox of this farm from the engine")
	return nil
}

package farmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// tidyTimeout bounds the removal of what is left; whoever stops us has a limit as well.
const tidyTimeout = 5 * time.Minute

// Caretake waits until ctx ends and then removes this farm's sandboxes from the engine, unless a container with all of the
// labels in keepWhile still runs: then a worker is there, which goes on with them. The node keeps its name in the engine.
// Labels are written as name=value; at least one is needed.
func Caretake(ctx context.Context, s *Settings, keepWhile []string, out io.Writer) (err error) {
	if s.Engine.Namespace == "" {
		return errors.New("engine.namespace is not set (SANDFARM_ENGINE_NAMESPACE): it says whose sandboxes are looked after")
	}
	e, err := s.engine("", s.Log.logger())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	say := newConsole(out)
	if _, err := e.Running(ctx, keepWhile...); err != nil { // better now than when it is needed
		return fmt.Errorf("look for workers: %w", err)
	}
	say.line("looking after the sandboxes of " + s.Engine.Namespace)
	<-ctx.Done()
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), tidyTimeout)
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
		return fmt.Errorf("remove what is left in the engine: %w", err)
	}
	say.line("no worker runs any more: removed every sandbox of this farm from the engine")
	return nil
}

package execution

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// WriteInputs writes the files that came with a request into the sandbox. Where an earlier attempt has started the code, the
// files stay as they are: the code may have changed them.
func (x *Runner) WriteInputs(ctx context.Context, t Task, sandbox *farm.Sandbox) error {
	if len(t.Request.Files) == 0 {
		return nil
	}
	if t.Job.Attempt > 1 {
		c, err := x.node.Connect(ctx, sandbox)
		if err != nil {
			return err
		}
		started, err := c.Execution(ctx, t.Job.ID)
		if err != nil {
			return fmt.Errorf("look for the execution: %w", err)
		}
		if started != nil {
			return nil
		}
	}
	for _, f := range t.Request.Files {
		if err := x.writeInput(ctx, sandbox, f); err != nil {
			return fmt.Errorf("write %s: %w", f.Path, err)
		}
	}
	return nil
}

// writeInput writes one file that came with a request.
func (x *Runner) writeInput(ctx context.Context, sandbox *farm.Sandbox, f farm.InputFile) error {
	c, err := x.node.Connect(ctx, sandbox)
	if err != nil {
		return err
	}
	if f.Staged == "" {
		_, err = c.Write(ctx, f.Path, bytes.NewReader(f.Content))
		return err
	}
	r, _, err := x.blobs.Get(ctx, f.Staged, 0, 0)
	if err != nil {
		return fmt.Errorf("read upload: %w", err)
	}
	_, err = c.Write(ctx, f.Path, r)
	return errors.Join(err, r.Close())
}

package dispatch

import (
	"context"
	"errors"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// AbortCells cancels the cells of notebooks that wait in the FIFO of a sandbox: all, or those of one session.
func (d *Dispatcher) AbortCells(ctx context.Context, sandbox farm.Ref, session string) error {
	cells, err := d.store.QueuedCells(ctx, sandbox, session)
	for _, ref := range cells { // the newest first, so none becomes the next to run
		err = errors.Join(err, d.abort(ctx, ref))
	}
	return err
}

// abort cancels a cell that waits.
func (d *Dispatcher) abort(ctx context.Context, ref farm.Ref) error {
	_, err := d.CancelFor(ctx, ref, aborted())
	if farm.CodeOf(err) == farm.CodeNotFound {
		return nil
	}
	return err
}

func aborted() *farm.JobError {
	return &farm.JobError{Code: farm.CodeConflict, Message: "A cell before this one failed, or the kernel was restarted. Send the cell again."}
}

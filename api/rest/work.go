package rest

import (
	"context"
	"io"

	"github.com/sandfarm/sandfarm/internal/budget"
)

// work is work on a body while it arrives. Once much of it has come, work has a core of the tenant's (budget.Core), but not while it waits for more.
type work struct {
	ctx   context.Context
	from  io.Reader
	size  int    // how much has come, or was made of it
	leave func() // nil: no work is being done
}

// do does some work, which reads the body by Read.
func (w *work) do(some func() error) (err error) {
	if w.leave, err = budget.Core(w.ctx, w.size); err != nil {
		return err
	}
	defer func() {
		w.leave()
		w.leave = nil
	}()
	return some()
}

// Read reads more of the body.
func (w *work) Read(p []byte) (int, error) {
	working := w.leave != nil
	if working {
		w.leave()
	}
	n, err := w.from.Read(p)
	if w.size += n; !working {
		return n, err
	}
	leave, failed := budget.Core(w.ctx, w.size)
	if failed != nil {
		return 0, failed
	}
	w.leave = leave
	return n, err
}

package worker

import (
	"context"
	"fmt"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// control interrupts or restarts kernels. It does not wait in the sandbox's line: that is what it is for.
func (w *Worker) control(ctx context.Context, r *run) (verdict, error) {
	c, err := w.link(ctx, r.Sandbox)
	if err != nil {
		if gone, ok := w.gone(ctx, r.Sandbox); ok {
			return verdict{}, gone
		}
		return verdict{}, err
	}
	if r.Job.Kind == farm.KindInterrupt {
		err = c.Interrupt(ctx, r.Request.Context)
	} else {
		err = c.RestartKernel(ctx, r.Request.Context)
	}
	if err != nil {
		return verdict{}, fmt.Errorf("%s kernel: %w", r.Job.Kind, err)
	}
	return verdict{state: farm.JobCompleted}, nil
}

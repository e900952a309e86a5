package execution

import (
	"context"
	"fmt"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Kernel interrupts or restarts a kernel. Its job does not wait in the sandbox's FIFO.
func (x *Runner) Kernel(ctx context.Context, t Task) (Outcome, error) {
	c, err := x.node.Connect(ctx, t.Sandbox)
	if err != nil {
		if gone, ok := x.node.Gone(ctx, t.Sandbox); ok {
			return Outcome{}, gone
		}
		return Outcome{}, err
	}
	if t.Job.Kind == farm.KindInterrupt {
		err = c.Interrupt(ctx, t.Request.Context)
	} else {
		err = c.RestartKernel(ctx, t.Request.Context)
	}
	if err != nil {
		return Outcome{}, fmt.Errorf("%s kernel: %w", t.Job.Kind, err)
	}
	return Outcome{State: farm.JobCompleted}, nil
}

package execution

import (
	"context"
	"fmt"

	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// start starts the execution in the agent, or attaches to it. The agent has the request then: a large one is dropped here, since many jobs may
// run for long.
func (x *Runner) start(ctx context.Context, e *execution, c *client.Client) (*client.Frames, error) {
	if err := x.recall(ctx, e); err != nil {
		return nil, err
	}
	frames, err := e.run(ctx, c, e.job.ID, x.spec(e))
	if err != nil {
		return nil, fmt.Errorf("start execution: %w", err)
	}
	if e.claim != nil && e.claim.ForgetRequest() {
		e.dropped = max(e.dropped, budget.Held(ctx))
		e.use(outline(e.request))
		e.outline = true
		budget.Keep(ctx, 0)
	}
	return frames, nil
}

// recall reads the request again if it was dropped.
func (x *Runner) recall(ctx context.Context, e *execution) error {
	if !e.outline {
		return nil
	}
	e.deadline.pause()
	defer e.deadline.resume()
	if err := x.retry(ctx, func(ctx context.Context) error { return x.store.LoadRequest(ctx, e.claim) }); err != nil {
		return fmt.Errorf("read the request again: %w", err)
	}
	e.use(e.claim.Request)
	e.outline = false
	return nil
}

// resultWeight is how often a result is in memory until it is stored: as text, encoded, and what the collector has not freed.
const resultWeight = 3

// chargeResult waits for the memory of the result, until the job's memory is released. Nothing else is held meanwhile, so it cannot deadlock:
// the request is not needed any more, all frames are handled, and nothing waits for the staging budget.
func (x *Runner) chargeResult(ctx context.Context, e *execution) error {
	need := e.collect.inlined() * resultWeight
	if e.outline && e.request.Command != nil {
		need += e.dropped
	}
	if need <= budget.SmallBytes {
		return nil
	}
	budget.Keep(ctx, 0)
	return budget.Charge(ctx, need)
}

// inlined is how many bytes of output and displayed values the result has.
func (c *collector) inlined() int64 {
	n := int64(c.inline)
	for _, o := range c.outputs {
		n += int64(o.stdout.inlined() + o.stderr.inlined())
	}
	return n
}

func (e *execution) use(request *farm.Request) {
	e.request = request
	if e.collect != nil {
		e.collect.request = request
	}
}

// outline is a request without code, commands and files; their number stays.
func outline(r *farm.Request) *farm.Request {
	short := *r
	short.Files = nil
	if r.Execute != nil {
		execute := *r.Execute
		execute.Code, short.Execute = "", &execute
	}
	if r.Command != nil {
		command := *r.Command
		command.Commands, short.Command = make([]string, len(r.Command.Commands)), &command
	}
	return &short
}

package faulttest

import (
	"context"
	"fmt"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
)

// Create creates a sandbox as a careful caller does, and returns its id when its creation has ended; "" if that did not complete. It has one
// container then.
func (c *Case) Create(request wire.CreateRequest) (box string) {
	j := c.bare("")
	err := c.accept(j, func(key client.CallOption) error {
		made, err := c.f.CreateSandbox(c.f.t.Context(), request, key)
		j.ID, j.Box = made.Job.ID, made.Sandbox.ID
		return err
	}, true)
	if err != nil {
		c.f.t.Errorf("create: not accepted within %s: %v", insistFor, err)
		return ""
	}
	if !c.completed(j) {
		return ""
	}
	if n := c.containers(j.Box); n != 1 {
		j.saw = fmt.Sprintf("its sandbox is told ready, and has %d containers", n)
	}
	return j.Box
}

// Close closes a sandbox as a careful caller does. When it is told closed, it has no container.
func (c *Case) Close(box string) {
	j := c.bare(box)
	err := c.accept(j, func(key client.CallOption) error {
		got, err := c.f.Close(c.f.t.Context(), box, key)
		j.ID = got.ID
		return err
	}, true)
	if err != nil {
		c.f.t.Errorf("close: not accepted within %s: %v", insistFor, err)
		return
	}
	if !c.completed(j) {
		return
	}
	now, err := c.f.Sandbox(c.f.t.Context(), box)
	if n := c.containers(box); err != nil || now.State != "closed" || n > 0 {
		j.saw = fmt.Sprintf("its sandbox is %s, with %d containers: %v", now.State, n, err)
	}
}

// Ran submits a job as Insist does, and waits for its end.
func (c *Case) Ran(box string, run Run) {
	c.f.t.Helper()
	if j := c.Insist(box, run); j.ID != "" {
		c.completed(j)
	}
}

// bare is a job of the case that runs no code.
func (c *Case) bare(box string) *Job {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent++
	return &Job{Box: box, token: fmt.Sprintf("%s-%d", c.id, c.sent), bare: true}
}

// completed waits for the end of a job. If it has not completed, the books will say so.
func (c *Case) completed(j *Job) bool {
	ctx, done := context.WithTimeout(c.f.t.Context(), 2*settleWithin)
	defer done()
	for ctx.Err() == nil {
		if end, err := c.f.Wait(ctx, j.ID); err == nil {
			return end.State == "completed"
		}
		<-time.After(200 * time.Millisecond)
	}
	return false
}

// containers is how many containers a sandbox has.
func (c *Case) containers(box string) (n int) {
	for _, other := range c.f.Containers() {
		if other == box {
			n++
		}
	}
	return n
}

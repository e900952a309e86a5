package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"

	"github.com/sandfarm/sandfarm/api/wire"
)

// StartProcess starts a process beside the jobs of a sandbox. It runs on when the caller leaves.
func (c *Client) StartProcess(ctx context.Context, sandboxID string, request wire.ProcessRequest) (wire.Process, error) {
	var got wire.Process
	err := c.json(ctx, call{method: http.MethodPost, path: processPath(sandboxID), body: request, once: true}, &got)
	return got, err
}

// Processes lists the processes of a sandbox that callers started, the oldest first.
func (c *Client) Processes(ctx context.Context, sandboxID string) ([]wire.Process, error) {
	var got wire.Processes
	err := c.json(ctx, call{method: http.MethodGet, path: processPath(sandboxID)}, &got)
	return got.Items, err
}

// Running lists all processes that run in a sandbox, also those that jobs and kernels started, by pid.
func (c *Client) Running(ctx context.Context, sandboxID string) ([]wire.RunningProcess, error) {
	var got wire.Processes
	err := c.json(ctx, call{method: http.MethodGet, path: processPath(sandboxID), query: url.Values{"all": {"true"}}}, &got)
	return got.Running, err
}

// Process reads a process.
func (c *Client) Process(ctx context.Context, sandboxID, id string) (wire.Process, error) {
	var got wire.Process
	err := c.json(ctx, call{method: http.MethodGet, path: processPath(sandboxID, id)}, &got)
	return got, err
}

// ProcessEvents streams the output of a process after the event with the id in after; "" is the first that is kept. If the connection breaks,
// it reconnects and continues. It ends after the event exit, or with an error.
func (c *Client) ProcessEvents(ctx context.Context, sandboxID, id, after string) iter.Seq2[wire.Event, error] {
	in := call{method: http.MethodGet, path: processPath(sandboxID, id, "events")}
	return c.stream(ctx, "follow process "+id, in, after, func(e wire.Event) bool { return e.Name == "exit" })
}

// EndProcess ends a process and all that it started, by SIGTERM and after five seconds by SIGKILL. It returns how it ended; the farm forgets it then.
func (c *Client) EndProcess(ctx context.Context, sandboxID, id string) (wire.Process, error) {
	var got wire.Process
	err := c.json(ctx, call{method: http.MethodDelete, path: processPath(sandboxID, id)}, &got)
	return got, err
}

// SignalProcess sends a signal, such as SIGINT, to a process and its group.
func (c *Client) SignalProcess(ctx context.Context, sandboxID, id, signal string) (wire.Process, error) {
	var got wire.Process
	err := c.json(ctx, call{method: http.MethodPost, path: processPath(sandboxID, id, "signal"), body: wire.SignalRequest{Signal: signal}, once: true}, &got)
	return got, err
}

func processPath(sandboxID string, more ...string) []string {
	return sandboxPath(sandboxID, append([]string{"processes"}, more...)...)
}

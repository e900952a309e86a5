package client

import (
	"context"
	"net/http"

	"github.com/sandfarm/sandfarm/api/wire"
)

// Images lists the sandbox images of the farm.
func (c *Client) Images(ctx context.Context) ([]wire.Image, error) {
	return listWhole[wire.Image](ctx, c, "v1", "images")
}

// Workers lists the live workers.
func (c *Client) Workers(ctx context.Context) ([]wire.Worker, error) {
	return listWhole[wire.Worker](ctx, c, "v1", "workers")
}

// Queues lists the queues with their backlogs.
func (c *Client) Queues(ctx context.Context) ([]wire.Queue, error) {
	return listWhole[wire.Queue](ctx, c, "v1", "queues")
}

// Activity lists the minutes of the last hour, the oldest first, with what became of the jobs that workers ended. It needs the scope admin.
func (c *Client) Activity(ctx context.Context) ([]wire.Minute, error) {
	return listWhole[wire.Minute](ctx, c, "v1", "activity")
}

// FleetEvents lists what happened to workers and nodes, the newest first; the farm keeps 200. It needs the scope admin.
func (c *Client) FleetEvents(ctx context.Context) ([]wire.FleetEvent, error) {
	return listWhole[wire.FleetEvent](ctx, c, "v1", "events")
}

// Scale says how many nodes of each kind the farm needs for what waits, nodes without GPUs first. It needs the scope admin.
func (c *Client) Scale(ctx context.Context) ([]wire.NodeNeed, error) {
	return listWhole[wire.NodeNeed](ctx, c, "v1", "scale")
}

// Limits reads the limits of the farm on requests.
func (c *Client) Limits(ctx context.Context) (wire.Limits, error) {
	var got wire.Limits
	err := c.json(ctx, call{method: http.MethodGet, path: []string{"v1", "limits"}}, &got)
	return got, err
}

// Health is nil if the API is alive.
func (c *Client) Health(ctx context.Context) error {
	return c.json(ctx, call{method: http.MethodGet, path: []string{"healthz"}}, nil)
}

// Ready is nil if every component that jobs need works, and otherwise an *Error with the code unavailable.
func (c *Client) Ready(ctx context.Context) error {
	return c.json(ctx, call{method: http.MethodGet, path: []string{"readyz"}}, nil)
}

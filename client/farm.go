package client

import (
	"context"
	"net/http"

	"github.com/sandfarm/sandfarm/api/wire"
)

// Images gives the sandbox images that the farm offers.
func (c *Client) Images(ctx context.Context) ([]wire.Image, error) {
	return all[wire.Image](ctx, c, "v1", "images")
}

// Workers gives who serves the farm now.
func (c *Client) Workers(ctx context.Context) ([]wire.Worker, error) {
	return all[wire.Worker](ctx, c, "v1", "workers")
}

// Queues gives how deep the queues are.
func (c *Client) Queues(ctx context.Context) ([]wire.Queue, error) {
	return all[wire.Queue](ctx, c, "v1", "queues")
}

// Limits gives the farm's bounds on what may be asked for.
func (c *Client) Limits(ctx context.Context) (wire.Limits, error) {
	var got wire.Limits
	err := c.json(ctx, call{method: http.MethodGet, path: []string{"v1", "limits"}}, &got)
	return got, err
}

// Health reports whether the API is alive: nil when it is.
func (c *Client) Health(ctx context.Context) error {
	return c.json(ctx, call{method: http.MethodGet, path: []string{"healthz"}}, nil)
}

// Ready reports whether all parts that jobs need are there: nil when they are, else an *Error with the code unavailable.
func (c *Client) Ready(ctx context.Context) error {
	return c.json(ctx, call{method: http.MethodGet, path: []string{"readyz"}}, nil)
}

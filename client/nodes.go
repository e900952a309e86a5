package client

import (
	"context"
	"net/http"

	"github.com/sandfarm/sandfarm/api/wire"
)

// DrainNode drains a node: it takes no new sandboxes. The state of the answer, and later of NodeDrain, says when its host may be restarted or
// removed. A node that is drained already gets the request's value of idle. The key needs the scope admin, as for all methods on nodes.
func (c *Client) DrainNode(ctx context.Context, node string, r wire.DrainRequest) (wire.Drain, error) {
	return c.drain(ctx, call{method: http.MethodPost, path: drainPath(node), body: r})
}

// NodeDrain reads the drain of a node, with what is left on the node; an *Error with the code not_found if it is not drained.
func (c *Client) NodeDrain(ctx context.Context, node string) (wire.Drain, error) {
	return c.drain(ctx, call{method: http.MethodGet, path: drainPath(node)})
}

// EndNodeDrain ends the drain of a node, which takes new sandboxes again; an *Error with the code not_found if it is not drained.
func (c *Client) EndNodeDrain(ctx context.Context, node string) error {
	return c.json(ctx, call{method: http.MethodDelete, path: drainPath(node)}, nil)
}

func drainPath(node string) []string { return []string{"v1", "nodes", node, "drain"} }

func (c *Client) drain(ctx context.Context, in call) (wire.Drain, error) {
	var got wire.Drain
	err := c.json(ctx, in, &got)
	return got, err
}

package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// SetDeadline sends the agent the time left until its sandbox's deadline. A few seconds after the deadline the agent
// ends the sandbox itself, if no worker has done so.
func (c *Client) SetDeadline(ctx context.Context, in time.Duration) error {
	query := url.Values{"in_ms": {strconv.FormatInt(max(in, 0).Milliseconds(), 10)}}
	return c.call(ctx, callTimeout, http.MethodPut, "/v1/deadline", query, nil, nil)
}

package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"

	"github.com/sandfarm/sandfarm/api/wire"
)

// SandboxFilter narrows a list of sandboxes. Zero fields do not.
type SandboxFilter struct {
	State  string            // one state, or several separated by commas
	Open   bool              // only sandboxes that have not ended; ignored if State is set
	Labels map[string]string // all must match
}

// openStates are the states of sandboxes that have not ended.
const openStates = "queued,starting,ready,busy,hibernated,closing"

// CreateSandbox creates a sandbox and returns it with the job that does so. Work can be submitted to the sandbox at once: it is
// queued until the sandbox is ready.
func (c *Client) CreateSandbox(ctx context.Context, request wire.CreateRequest, opts ...CallOption) (wire.Created, error) {
	var got wire.Created
	err := c.json(ctx, call{method: http.MethodPost, path: []string{"v1", "sandboxes"}, body: request}.with(opts), &got)
	return got, err
}

// Sandbox reads a sandbox. A closed one can be read for a day.
func (c *Client) Sandbox(ctx context.Context, id string) (wire.Sandbox, error) {
	var got wire.Sandbox
	err := c.json(ctx, call{method: http.MethodGet, path: sandboxPath(id)}, &got)
	return got, err
}

// Sandboxes lists the sandboxes of the tenant of the key, newest first, and fetches pages as needed.
func (c *Client) Sandboxes(ctx context.Context, filter SandboxFilter) iter.Seq2[wire.Sandbox, error] {
	query := url.Values{}
	if filter.State != "" {
		query.Set("state", filter.State)
	} else if filter.Open {
		query.Set("state", openStates)
	}
	for key, value := range filter.Labels {
		query.Add("label", key+"="+value)
	}
	return listPaged[wire.Sandbox](ctx, c, []string{"v1", "sandboxes"}, query)
}

// Update changes the name, the labels, the time to live or the hosts of a sandbox. The time to live starts again from now.
func (c *Client) Update(ctx context.Context, id string, request wire.UpdateRequest) (wire.Sandbox, error) {
	var got wire.Sandbox
	err := c.json(ctx, call{method: http.MethodPatch, path: sandboxPath(id), body: request}, &got)
	return got, err
}

// Egress lists the connections that a sandbox with the network allowlist asked for, the oldest first, behind the entry with this id ("": from the
// oldest that is kept), and fetches pages as needed.
func (c *Client) Egress(ctx context.Context, id, after string) iter.Seq2[wire.EgressEntry, error] {
	return func(yield func(wire.EgressEntry, error) bool) {
		for more := true; more; {
			query := url.Values{"limit": {"1000"}}
			if after != "" {
				query.Set("after", after)
			}
			var page wire.List[wire.EgressEntry]
			if err := c.json(ctx, call{method: http.MethodGet, path: sandboxPath(id, "egress"), query: query}, &page); err != nil {
				yield(wire.EgressEntry{}, err)
				return
			}
			for _, e := range page.Items {
				if after = e.ID; !yield(e, nil) {
					return
				}
			}
			more = page.NextCursor != ""
		}
	}
}

// Close cancels the jobs of a sandbox and removes it. It returns the job that does so.
func (c *Client) Close(ctx context.Context, id string, opts ...CallOption) (wire.Job, error) {
	return c.start(ctx, call{method: http.MethodDelete, path: sandboxPath(id)}, opts)
}

// Interrupt interrupts the code in the kernels of a sandbox, as Ctrl-C would.
func (c *Client) Interrupt(ctx context.Context, id string, opts ...CallOption) (wire.Job, error) {
	return c.start(ctx, call{method: http.MethodPost, path: sandboxPath(id, "interrupt")}, opts)
}

// Restart restarts the kernels of a sandbox: variables are lost, files stay.
func (c *Client) Restart(ctx context.Context, id string, opts ...CallOption) (wire.Job, error) {
	return c.start(ctx, call{method: http.MethodPost, path: sandboxPath(id, "restart")}, opts)
}

// Hibernate stores the memory of a sandbox on its node after the jobs before. It uses no memory and no cores until it resumes: by Resume, or
// for the next job that needs it. It needs the runtime runsc (gVisor).
func (c *Client) Hibernate(ctx context.Context, id string, opts ...CallOption) (wire.Job, error) {
	return c.start(ctx, call{method: http.MethodPost, path: sandboxPath(id, "hibernate")}, opts)
}

// Resume resumes a hibernated sandbox; another one stays as it is.
func (c *Client) Resume(ctx context.Context, id string, opts ...CallOption) (wire.Job, error) {
	return c.start(ctx, call{method: http.MethodPost, path: sandboxPath(id, "resume")}, opts)
}

// Execute runs code in the kernel of a context of the sandbox.
func (c *Client) Execute(ctx context.Context, id string, request wire.ExecuteRequest, opts ...CallOption) (wire.Job, error) {
	return c.start(ctx, call{method: http.MethodPost, path: sandboxPath(id, "execute"), body: request}, opts)
}

// Command runs shell commands in the sandbox.
func (c *Client) Command(ctx context.Context, id string, request wire.CommandRequest, opts ...CallOption) (wire.Job, error) {
	return c.start(ctx, call{method: http.MethodPost, path: sandboxPath(id, "commands"), body: request}, opts)
}

// Run runs code in a new sandbox that is closed afterwards.
func (c *Client) Run(ctx context.Context, request wire.RunRequest, opts ...CallOption) (wire.Job, error) {
	return c.start(ctx, call{method: http.MethodPost, path: []string{"v1", "run"}, body: request}, opts)
}

// start makes a request whose answer is a job.
func (c *Client) start(ctx context.Context, in call, opts []CallOption) (wire.Job, error) {
	var job wire.Job
	err := c.json(ctx, in.with(opts), &job)
	return job, err
}

func sandboxPath(id string, more ...string) []string {
	return append([]string{"v1", "sandboxes", id}, more...)
}

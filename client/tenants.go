package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
)

// Usage reads the quotas of the caller's tenant, what is used of them, and what it used on each of the last days, today included; 0 days:
// the farm's default.
func (c *Client) Usage(ctx context.Context, days int) (wire.Usage, error) {
	return c.usage(ctx, days, "v1", "usage")
}

// TenantUsage is Usage for another tenant; the key needs the scope admin, as for all methods on tenants.
func (c *Client) TenantUsage(ctx context.Context, tenant string, days int) (wire.Usage, error) {
	return c.usage(ctx, days, "v1", "tenants", tenant, "usage")
}

func (c *Client) usage(ctx context.Context, days int, path ...string) (wire.Usage, error) {
	in := call{method: http.MethodGet, path: path}
	if days != 0 {
		in.query = url.Values{"days": {strconv.Itoa(days)}}
	}
	var got wire.Usage
	err := c.json(ctx, in, &got)
	return got, err
}

// Tenants lists the tenants by name, page by page. An error ends it.
func (c *Client) Tenants(ctx context.Context) iter.Seq2[wire.Tenant, error] {
	return listPaged[wire.Tenant](ctx, c, []string{"v1", "tenants"}, nil)
}

// Tenant reads a tenant's quotas.
func (c *Client) Tenant(ctx context.Context, name string) (wire.Tenant, error) {
	var got wire.Tenant
	err := c.json(ctx, call{method: http.MethodGet, path: []string{"v1", "tenants", name}}, &got)
	return got, err
}

// ChangeTenant changes the quotas that the change names, in one step. The tenant need not exist before.
func (c *Client) ChangeTenant(ctx context.Context, name string, change wire.TenantChange) (wire.Tenant, error) {
	var got wire.Tenant
	err := c.json(ctx, call{method: http.MethodPatch, path: []string{"v1", "tenants", name}, body: change}, &got)
	return got, err
}

// SetTenant sets all quotas of a tenant: those that are nil get the farm's default. The tenant need not exist before.
func (c *Client) SetTenant(ctx context.Context, name string, quotas wire.TenantRequest) (wire.Tenant, error) {
	var got wire.Tenant
	err := c.json(ctx, call{method: http.MethodPut, path: []string{"v1", "tenants", name}, body: quotas}, &got)
	return got, err
}

// CreateKey makes an API key, for a caller whose own key has the scope admin. The answer is the only one that contains the key. It is
// not retried, since a lost answer would leave a key that no one knows.
func (c *Client) CreateKey(ctx context.Context, r wire.KeyRequest) (wire.NewKey, error) {
	var got wire.NewKey
	err := c.json(ctx, call{method: http.MethodPost, path: []string{"v1", "keys"}, body: r, once: true}, &got)
	return got, err
}

// Keys lists the API keys of a tenant, newest first, and fetches pages as needed; "" lists those of all tenants.
func (c *Client) Keys(ctx context.Context, tenant string) iter.Seq2[wire.Key, error] {
	query := url.Values{}
	if tenant != "" {
		query.Set("tenant", tenant)
	}
	return listPaged[wire.Key](ctx, c, []string{"v1", "keys"}, query)
}

// RevokeKey revokes an API key. No process of the farm takes it after a second.
func (c *Client) RevokeKey(ctx context.Context, id string) error {
	return c.json(ctx, call{method: http.MethodDelete, path: []string{"v1", "keys", id}}, nil)
}

// AuditFilter narrows the audit. Zero fields do not.
type AuditFilter struct {
	Tenant string
	After  time.Time // only entries after this time
}

// Audit lists the audit of the farm, newest first, and fetches pages as needed.
func (c *Client) Audit(ctx context.Context, filter AuditFilter) iter.Seq2[wire.AuditEntry, error] {
	query := url.Values{}
	if filter.Tenant != "" {
		query.Set("tenant", filter.Tenant)
	}
	if !filter.After.IsZero() {
		query.Set("created_after", filter.After.UTC().Format(time.RFC3339Nano))
	}
	return listPaged[wire.AuditEntry](ctx, c, []string{"v1", "audit"}, query)
}

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

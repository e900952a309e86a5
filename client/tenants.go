package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"strconv"

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

package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
)

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

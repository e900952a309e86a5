package store

import (
	"context"
	"strconv"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Adopt writes the record of a sandbox whose container outlived it, as ready: what a Redis without persistence, or one
// that lost its data, has forgotten. A record that is there stays as it is, and adopted is false.
func (s *Store) RestoreSandbox(ctx context.Context, box *farm.Sandbox) (adopted bool, err error) {
	// Not by remember, which believes for a minute that a tenant is written down.
	if err := s.rdb.SAdd(ctx, s.prefix+"tenants", box.Tenant).Err(); err != nil {
		return false, wrap("write down tenant", err)
	}
	doc, err := encode("sandbox", box)
	if err != nil {
		return false, err
	}
	r, err := s.run(ctx, "adopt sandbox", s.scripts.adopt, box.Tenant, box.ID, doc, micros(box.LastUsedAt), micros(box.ExpiresAt),
		strconv.Itoa(box.Spec.IdleSeconds), box.Node, box.Container)
	if err != nil {
		return false, err
	}
	return r.text(0) == "ok", nil
}

package service

import (
	"context"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// Audit lists entries of the audit, newest first: of a tenant, or of all with "".
func (s *Service) Audit(ctx context.Context, tenant string, created store.TimeRange, page store.Page) (wire.List[wire.AuditEntry], error) {
	if tenant != "" && !farm.ValidTenant(tenant) {
		return wire.List[wire.AuditEntry]{}, farm.Invalidf("tenant %q is not the name of a tenant", farm.Shorten(tenant))
	}
	entries, next, err := s.Store.Audit(ctx, tenant, created, page)
	list := wire.List[wire.AuditEntry]{Items: make([]wire.AuditEntry, len(entries)), NextCursor: wire.Cursor(next)}
	for i, e := range entries {
		list.Items[i] = wire.AuditEntry(e)
	}
	return list, err
}

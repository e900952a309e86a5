package store

import (
	"context"
	"fmt"
)

// migrations are the steps from each version of the schema to the next: the first one leads from version 0, the format of a Redis without a
// version. A step may be repeated after it was interrupted, and runs beside processes of the version before it: it adds what the new version
// needs and keeps what the old one reads (docs/operations.md). Released steps are never changed or removed.
func migrations() []func(*Store, context.Context) error {
	return []func(*Store, context.Context) error{
		(*Store).migrateToNodes,
		(*Store).migrateToGenerations,
	}
}

// migrateToNodes leads to version 1: the open sandboxes of each node are indexed.
func (s *Store) migrateToNodes(ctx context.Context) error {
	tenants, err := s.Tenants(ctx)
	if err != nil {
		return err
	}
	for _, tenant := range tenants {
		if _, err := s.RepairUse(ctx, tenant); err != nil {
			return fmt.Errorf("index the sandboxes of tenant %s: %w", tenant, err)
		}
	}
	_, err = s.NodesInUse(ctx) // writes the tenants of each node
	return err
}

// migrateToGenerations leads to version 2: sandboxes that have left a node are of their second generation.
func (s *Store) migrateToGenerations(ctx context.Context) error {
	tenants, err := s.Tenants(ctx)
	if err != nil {
		return err
	}
	for _, tenant := range tenants {
		for after := "-1"; after != ""; {
			r, err := s.Run(ctx, "give sandboxes generations", "schema_generation", tenant, after, scanStretch)
			if err != nil {
				return err
			}
			after = r.text(1)
		}
	}
	return nil
}

package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store/db"
)

// The lock under which one process migrates.
const (
	schemaLock    = "schema"
	schemaLockTTL = 30 * time.Second // renewed before each step
	schemaPoll    = 200 * time.Millisecond
)

// Schema is the version of the format in which this program stores its records.
func Schema() int { return len(migrations()) }

// StoredSchema reads the version of the format of the records in Redis; 0 if it has none, because it is empty or older than versions.
func (s *Store) StoredSchema(ctx context.Context) (int, error) {
	n, err := s.db.Redis.Get(ctx, s.db.Farm(db.FarmSchema, "")).Int()
	if errors.Is(err, redis.Nil) {
		return 0, nil
	}
	return n, db.Wrap("read schema version", err)
}

// Migrate brings the records in Redis to the format of this program, and returns the version that it found. One process migrates; the
// others wait for it until ctx ends. A migration that was interrupted is continued by the next call. CodeConflict if a newer program wrote
// the records: this one must not run.
func (s *Store) Migrate(ctx context.Context) (from int, err error) {
	from, err = s.StoredSchema(ctx)
	if err != nil {
		return 0, err
	}
	owner := rand.Text()
	for version := from; version != Schema(); {
		if version > Schema() {
			return from, tooNew(version)
		}
		held, err := s.Lock(ctx, schemaLock, owner, schemaLockTTL) // or renews it
		if err != nil {
			return from, err
		}
		if held {
			if err := s.migrateFrom(ctx, version); err != nil {
				return from, fmt.Errorf("migrate records from schema version %d: %w", version, err)
			}
		} else if err := s.awaitMigration(ctx); err != nil {
			return from, err
		}
		if version, err = s.StoredSchema(ctx); err != nil {
			return from, err
		}
	}
	return from, s.Unlock(ctx, schemaLock, owner)
}

// CheckSchema refuses records that a newer program wrote, as Migrate does, and changes nothing.
func (s *Store) CheckSchema(ctx context.Context) error {
	version, err := s.StoredSchema(ctx)
	if err == nil && version > Schema() {
		err = tooNew(version)
	}
	return err
}

func tooNew(version int) error {
	return farm.Conflictf("The records in Redis have schema version %d, and this program knows versions up to %d: a newer program wrote them. "+
		"Start the newer program, or restore a backup that was made before its first start.", version, Schema())
}

// migrateFrom makes one step, and records it unless another process has.
func (s *Store) migrateFrom(ctx context.Context, version int) error {
	if err := migrations()[version](s, ctx); err != nil {
		return err
	}
	_, err := s.db.RunOn(ctx, "write schema version", "schema", s.db.Farm(db.FarmSchema, ""), version+1)
	return err
}

// awaitMigration waits a little for the process that migrates.
func (s *Store) awaitMigration(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return fmt.Errorf("wait for another process that migrates the records: %w", context.Cause(ctx))
	case <-time.After(schemaPoll):
		return nil
	}
}

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
			r, err := s.db.Run(ctx, "give sandboxes generations", "schema_generation", tenant, after, db.ScanStretch)
			if err != nil {
				return err
			}
			after = r.Text(1)
		}
	}
	return nil
}

package store

import (
	"context"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// keepLease is how long the uploads of a job that is not accepted may be in the object store without a sign of life of the process that writes
// them. Then they are removed: that process has died.
const keepLease = time.Hour

// linkSlack is how much longer than its link a copy of a file is kept: the clocks of the processes and of the object store differ.
const linkSlack = 5 * time.Minute

// keptPrefix begins the keys of the objects of an entry of the index of documents; entries of staged objects begin with farm.StagingPrefix.
func keptPrefix(tenant, entry string) string {
	if id, staged := strings.CutPrefix(entry, farm.StagingPrefix); staged {
		return farm.StagingOf(farm.Ref{Tenant: tenant, ID: id})
	}
	return farm.RecordsOf(farm.Ref{Tenant: tenant, ID: entry})
}

// storedKeepArgs are the arguments of stored_keep.lua.
type storedKeepArgs struct {
	ID      string `lua:"id"`
	Bytes   int64  `lua:"bytes"`
	Expires string `lua:"expires"` // microseconds
	Read    bool   `lua:"read"`    // a read, which may exceed the quota by READ_ROOM
}

// keep sets how many bytes an entry of the index of documents counts as stored; 0 ends the entry. CodeExhausted: it is more than the tenant may
// store.
func (s *Store) keep(ctx context.Context, tenant, entry string, bytes int64) error {
	return s.keepFor(ctx, tenant, storedKeepArgs{ID: entry, Bytes: bytes}, keepLease)
}

// keepFor is keep with a lease of its own.
func (s *Store) keepFor(ctx context.Context, tenant string, args storedKeepArgs, lease time.Duration) error {
	args.Expires = micros(s.now().Add(lease))
	r, err := s.Run(ctx, "charge stored bytes", "stored_keep", tenant, args)
	if err != nil || r.text(0) != "full" {
		return err
	}
	return storageFull(r)
}

// storageFull makes the error of a script's reply that the tenant's storage is full: CodeExhausted, with the quota.
func storageFull(r reply) error {
	mb := func(i int) float64 { return float64(number(r.text(i))) / (1 << 20) }
	return farm.QuotaError(farm.QuotaUse{Name: farm.QuotaStoredMB, Limit: mb(1), Used: mb(2)}, mb(3))
}

// KeepUploads sets how many bytes the uploads of a job count as stored, in place of what they counted before; 0 ends that, when they are removed.
// It is called before they are written. They may be those of a job that is not accepted yet: then they are removed an hour after the last call.
// Uploads of an accepted job are removed when it has ended. CodeExhausted: the storage of the tenant is full, and nothing changes.
func (s *Store) KeepUploads(ctx context.Context, job farm.Ref, bytes int64) error {
	if bytes > 0 {
		if err := s.rememberTenant(ctx, job.Tenant); err != nil { // so that Trim looks at them
			return err
		}
	}
	return s.keep(ctx, job.Tenant, farm.StagingPrefix+job.ID, bytes)
}

// KeepCopy sets how many bytes the copy of a file counts as stored that a read makes for its caller. It is called before the copy is written, and
// KeepUploads with 0 bytes when it is removed. With a link, it is removed some minutes after linked has passed; without one, which is 0,
// an hour after the last call, and it may exceed the quota a little, as results of reads do. CodeExhausted: the storage of the tenant is full, and nothing changes.
func (s *Store) KeepCopy(ctx context.Context, job farm.Ref, bytes int64, linked time.Duration) error {
	args, lease := storedKeepArgs{ID: farm.StagingPrefix + job.ID, Bytes: bytes, Read: linked == 0}, keepLease
	if linked > 0 {
		lease = linked + linkSlack
	}
	return s.keepFor(ctx, job.Tenant, args, lease)
}

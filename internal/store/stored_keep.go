package store

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// keepLease is how long the uploads of a job that is not accepted may be in the object store without a sign of life of the process that writes
// them. Then they are removed: that process has died.
const keepLease = time.Hour

// stagingPrefix begins the keys of uploads and, in the index of documents, their entries.
const stagingPrefix = "staging/"

// StagingPrefix begins the keys of the uploads of a job.
func StagingPrefix(job farm.Ref) string {
	return fmt.Sprintf("%s%s/%s/", stagingPrefix, job.Tenant, job.ID)
}

// keptPrefix begins the keys of the objects of an entry of the index of documents.
func keptPrefix(tenant, entry string) string {
	if id, staged := strings.CutPrefix(entry, stagingPrefix); staged {
		return StagingPrefix(farm.Ref{Tenant: tenant, ID: id})
	}
	return documentPrefix(farm.Ref{Tenant: tenant, ID: entry})
}

// storedKeepArgs are the arguments of stored_keep.lua.
type storedKeepArgs struct {
	ID      string `lua:"id"`
	Bytes   int64  `lua:"bytes"`
	Expires string `lua:"expires"` // microseconds
}

// keep sets how many bytes an entry of the index of documents counts as stored; 0 ends the entry. CodeExhausted: it is more than the tenant may
// store.
func (s *Store) keep(ctx context.Context, tenant, entry string, bytes int64) error {
	args := storedKeepArgs{ID: entry, Bytes: bytes, Expires: micros(s.now().Add(keepLease))}
	r, err := s.run(ctx, "charge stored bytes", s.scripts.storedKeep, tenant, values(args)...)
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
	return s.keep(ctx, job.Tenant, stagingPrefix+job.ID, bytes)
}

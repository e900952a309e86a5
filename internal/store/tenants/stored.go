package tenants

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store/db"
)

// Stored is what a tenant keeps in the object store.
type Stored struct {
	Bytes     int64 // of its artifacts
	Artifacts int64 // each counts farm.ObjectBytes against the limit, beside its bytes
	Reserved  int64 // bytes that running jobs have reserved and not recorded yet, and checkpoints of hibernated sandboxes; they count against the limit
	Kept      int64 // bytes of uploads that no job has read yet, of copies of files for callers, and of documents of records; they count against the limit
}

// Stored reads what a tenant stores. An unknown tenant stores nothing.
func (s *Store) Stored(ctx context.Context, tenant string) (Stored, error) {
	found, err := s.Redis.HMGet(ctx, s.Index(tenant, db.IndexStored), "bytes", "artifacts", "reserved", "kept").Result()
	if err != nil {
		return Stored{}, db.Wrap("read what is stored", err)
	}
	var n [4]int64
	for i, value := range found {
		text, _ := value.(string)
		n[i], _ = strconv.ParseInt(text, 10, 64)
	}
	return Stored{Bytes: n[0], Artifacts: n[1], Reserved: n[2], Kept: n[3]}, nil
}

// Used is how many bytes count against the tenant's limit.
func (s Stored) Used() int64 { return s.Bytes + s.Artifacts*farm.ObjectBytes + s.Reserved + s.Kept }

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

// removeKept removes the objects of an entry of the index of documents. That of artifacts, which is made at the end of a job (job_finish.lua), has those
// that no record names.
func (s *Store) removeKept(ctx context.Context, tenant, entry string) error {
	if of, ok := strings.CutPrefix(entry, farm.ArtifactsPrefix); ok {
		sandbox, job, _ := strings.Cut(of, "/")
		return s.dropStrays(ctx, sandbox, farm.Ref{Tenant: tenant, ID: job})
	}
	_, err := s.Documents.DeletePrefix(ctx, keptPrefix(tenant, entry))
	return err
}

// OrphanedObjects picks those keys of objects below farm.RecordsPrefix and farm.StagingPrefix that no entry of an index of documents names, so that
// Trim never removes them.
func (s *Store) OrphanedObjects(ctx context.Context, keys []string) (orphaned []string, err error) {
	pipe := s.Redis.Pipeline()
	named := make([]*redis.FloatCmd, len(keys))
	for i, key := range keys {
		owner := farm.OwnerOf(key)
		if owner == (farm.Ref{}) {
			continue
		}
		entry := owner.ID
		if strings.HasPrefix(key, farm.StagingPrefix) {
			entry = farm.StagingPrefix + entry
		}
		named[i] = pipe.ZScore(ctx, s.Index(owner.Tenant, db.IndexDocuments), entry)
	}
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return nil, db.Wrap("look for records of objects", err)
	}
	for i, key := range keys {
		switch {
		case named[i] == nil || errors.Is(named[i].Err(), redis.Nil):
			orphaned = append(orphaned, key)
		case named[i].Err() != nil:
			return nil, db.Wrap("look for records of objects", named[i].Err())
		}
	}
	return orphaned, nil
}

// storedKeepArgs are the arguments of stored_keep.lua.
type storedKeepArgs struct {
	ID      string `lua:"id"`
	Bytes   int64  `lua:"bytes"`
	Expires string `lua:"expires"` // microseconds
	Read    bool   `lua:"read"`    // a read, which may exceed the quota by READ_ROOM
}

// Keep sets how many bytes an entry of the index of documents counts as stored; 0 ends the entry. CodeExhausted: it is more than the tenant may
// store.
func Keep(ctx context.Context, d *db.DB, tenant, entry string, bytes int64) error {
	return keepFor(ctx, d, tenant, storedKeepArgs{ID: entry, Bytes: bytes}, keepLease)
}

// keepFor is Keep with a lease of its own.
func keepFor(ctx context.Context, d *db.DB, tenant string, args storedKeepArgs, lease time.Duration) error {
	args.Expires = db.Micros(d.Now().Add(lease))
	r, err := d.Run(ctx, "charge stored bytes", "stored_keep", tenant, args)
	if err != nil || r.Text(0) != "full" {
		return err
	}
	return StorageFull(r)
}

// StorageFull makes the error of a script's reply that the tenant's storage is full: CodeExhausted, with the quota.
func StorageFull(r db.Reply) error {
	mb := func(i int) float64 { return float64(db.Number(r.Text(i))) / (1 << 20) }
	return farm.QuotaError(farm.QuotaUse{Name: farm.QuotaStoredMB, Limit: mb(1), Used: mb(2)}, mb(3))
}

// KeepUploads sets how many bytes the uploads of a job count as stored (farm.StoredBytes of each object), in place of what they counted before; 0 ends that, when they are removed.
// It is called before they are written. They may be those of a job that is not accepted yet: then they are removed an hour after the last call.
// Uploads of an accepted job are removed when it has ended. CodeExhausted: the storage of the tenant is full, and nothing changes.
func (s *Store) KeepUploads(ctx context.Context, job farm.Ref, bytes int64) error {
	if bytes > 0 {
		if err := s.RememberTenant(ctx, job.Tenant); err != nil { // so that Trim looks at them
			return err
		}
	}
	return Keep(ctx, s.DB, job.Tenant, farm.StagingPrefix+job.ID, bytes)
}

// KeepCopy counts the copy of a file of size bytes as stored that a read makes for its caller, by farm.StoredBytes. It is called before the copy is written, and
// KeepUploads with 0 bytes when it is removed. With a link, it is removed some minutes after linked has passed; without one, which is 0,
// an hour after the last call, and it may exceed the quota a little, as results of reads do. CodeExhausted: the storage of the tenant is full, and nothing changes.
func (s *Store) KeepCopy(ctx context.Context, job farm.Ref, size int64, linked time.Duration) error {
	args, lease := storedKeepArgs{ID: farm.StagingPrefix + job.ID, Bytes: farm.StoredBytes(size), Read: linked == 0}, keepLease
	if linked > 0 {
		lease = linked + linkSlack
	}
	return keepFor(ctx, s.DB, job.Tenant, args, lease)
}

// storedRepairArgs are the arguments of stored_repair.lua.
type storedRepairArgs struct {
	Max    int  `lua:"most"`
	Anew   bool `lua:"anew"`
	AtOnce int  `lua:"at_once"`
}

// StoredDrift is by how much the counts were too high that RepairStored has corrected (negative: too low).
type StoredDrift struct {
	Stored
	Manifests int64 // bytes of the tenant's lists of artifacts in Redis
}

// RepairStored compares what is counted as stored with a tenant's manifests, unfinished jobs and documents, and corrects it. One call looks at
// up to most manifests and about as many documents; the first call of a walk is anew. done is false until the last one, which has the
// drift. What changes between the calls is no drift. What more than maxRepair unfinished jobs
// have reserved is not compared.
func (s *Store) RepairStored(ctx context.Context, tenant string, limit int, anew bool) (drift StoredDrift, done bool, err error) {
	r, err := s.Run(ctx, "repair what is stored", "stored_repair", tenant, storedRepairArgs{Max: limit, Anew: anew, AtOnce: maxRepair})
	if err != nil || r.Text(0) != "ok" {
		return StoredDrift{}, false, err
	}
	var n [5]int64
	for i := range n {
		n[i], _ = strconv.ParseInt(r.Text(i+1), 10, 64)
	}
	return StoredDrift{Stored{Bytes: n[0], Artifacts: n[1], Reserved: n[2], Kept: n[3]}, n[4]}, true, nil
}

// trimDocuments removes the documents of records that have expired or were removed. It returns how many records they belonged to.
func (s *Store) trimDocuments(ctx context.Context, tenant string) (records int, err error) {
	if s.Documents == nil {
		return 0, nil
	}
	const stretch = 100
	index := s.Index(tenant, db.IndexDocuments)
	for {
		ids, err := s.Redis.ZRangeByScore(ctx, index, &redis.ZRangeBy{Min: "-inf", Max: db.Micros(s.Now()), Count: stretch}).Result()
		if err != nil {
			return records, db.Wrap("list expired documents", err)
		}
		for _, id := range ids {
			if err := s.removeKept(ctx, tenant, id); err != nil {
				return records, fmt.Errorf("remove documents of %s: %w", id, err)
			}
			if err := Keep(ctx, s.DB, tenant, id, 0); err != nil {
				return records, err
			}
			records++
		}
		if len(ids) < stretch {
			return records, nil
		}
	}
}

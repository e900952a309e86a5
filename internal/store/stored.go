package store

import (
	"context"
	"strconv"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Stored is what a tenant keeps in the object store.
type Stored struct {
	Bytes     int64 // of its artifacts
	Artifacts int64 // each counts farm.ArtifactBytes against the limit, beside its bytes
	Reserved  int64 // bytes that running jobs have reserved and not recorded yet, and checkpoints of hibernated sandboxes; they count against the limit
	Kept      int64 // bytes of uploads that no job has read yet, of copies of files for callers, and of documents of records; they count against the limit
	Manifests int64 // bytes of its lists of artifacts in Redis; RepairStored alone says it
}

// Used is how many bytes count against the tenant's limit.
func (s Stored) Used() int64 { return s.Bytes + s.Artifacts*farm.ArtifactBytes + s.Reserved + s.Kept }

// Stored reads what a tenant stores. An unknown tenant stores nothing.
func (s *Store) Stored(ctx context.Context, tenant string) (Stored, error) {
	found, err := s.rdb.HMGet(ctx, s.Index(tenant, IndexStored), "bytes", "artifacts", "reserved", "kept").Result()
	if err != nil {
		return Stored{}, wrap("read what is stored", err)
	}
	var n [4]int64
	for i, value := range found {
		text, _ := value.(string)
		n[i], _ = strconv.ParseInt(text, 10, 64)
	}
	return Stored{Bytes: n[0], Artifacts: n[1], Reserved: n[2], Kept: n[3]}, nil
}

// storedReserveArgs are the arguments of stored_reserve.lua.
type storedReserveArgs struct {
	Job     string `lua:"job"`
	Attempt int    `lua:"attempt"`
	Bytes   int64  `lua:"bytes"`
}

// ReserveStored sets how many bytes a running job may still record as artifacts (farm.StoredBytes of each), in place of what it reserved before. Files are uploaded after
// their bytes are reserved, so that no tenant stores more than its limit. AddArtifacts frees what it counts, and the end of the job the rest.
// If the tenant's storage is full nothing changes, and free is how many bytes the job could reserve. ErrFenced if the job does not run under
// this attempt.
func (s *Store) ReserveStored(ctx context.Context, job farm.Ref, attempt int, bytes int64) (reserved bool, free int64, err error) {
	r, err := s.Run(ctx, "reserve storage", "stored_reserve", job.Tenant, storedReserveArgs{
		Job: job.ID, Attempt: attempt, Bytes: bytes,
	})
	if err != nil {
		return false, 0, err
	}
	if r.text(0) == "full" {
		free, _ := strconv.ParseInt(r.text(1), 10, 64)
		return false, free, nil
	}
	err = fenced("reserve storage", job, r)
	return err == nil, 0, err
}

// storedRepairArgs are the arguments of stored_repair.lua.
type storedRepairArgs struct {
	Most   int  `lua:"most"`
	Anew   bool `lua:"anew"`
	AtOnce int  `lua:"at_once"`
}

// RepairStored compares what is counted as stored with a tenant's manifests, unfinished jobs and documents, and corrects it. One call looks at
// up to most manifests and about as many documents; the first call of a walk is anew. done is false until the last one, which says in drift by
// how much the counts were too high (negative: too low). What changes between the calls is no drift. What more than repairMost unfinished jobs
// have reserved is not compared.
func (s *Store) RepairStored(ctx context.Context, tenant string, most int, anew bool) (drift Stored, done bool, err error) {
	r, err := s.Run(ctx, "repair what is stored", "stored_repair", tenant, storedRepairArgs{Most: most, Anew: anew, AtOnce: repairMost})
	if err != nil || r.text(0) != "ok" {
		return Stored{}, false, err
	}
	var n [5]int64
	for i := range n {
		n[i], _ = strconv.ParseInt(r.text(i+1), 10, 64)
	}
	return Stored{Bytes: n[0], Artifacts: n[1], Reserved: n[2], Kept: n[3], Manifests: n[4]}, true, nil
}

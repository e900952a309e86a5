package store

import (
	"context"
	"strconv"
)

// Stored is what a tenant keeps in the object store.
type Stored struct {
	Bytes     int64 // of its artifacts
	Artifacts int64
	Reserved  int64 // bytes that running jobs have reserved and not recorded yet; they count against the limit
}

// Used is how many bytes count against the tenant's limit.
func (s Stored) Used() int64 { return s.Bytes + s.Reserved }

// storedKey is the hash that the scripts which record, delete and reserve keep exact: the fields are bytes, artifacts and reserved.
func (s *Store) storedKey(tenant string) string { return s.index(tenant, "stored") }

// Stored reads what a tenant stores. An unknown tenant stores nothing.
func (s *Store) Stored(ctx context.Context, tenant string) (Stored, error) {
	found, err := s.rdb.HMGet(ctx, s.storedKey(tenant), "bytes", "artifacts", "reserved").Result()
	if err != nil {
		return Stored{}, wrap("read what is stored", err)
	}
	var n [3]int64
	for i, value := range found {
		text, _ := value.(string)
		n[i], _ = strconv.ParseInt(text, 10, 64)
	}
	return Stored{Bytes: n[0], Artifacts: n[1], Reserved: n[2]}, nil
}

package sandboxes

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store/db"
)

// EgressAppend is what a worker adds to the log of a sandbox's connections.
type EgressAppend struct {
	Sandbox    farm.Ref
	Generation int // that the sandbox must have
	Entries    []farm.EgressEntry
	Bytes      int64 // that the sandbox has transferred since the last call, those of open connections included
}

// EgressBytes bounds the log of a sandbox's connections: its entries, encoded. More than 1000 usual ones.
const EgressBytes = 256 << 10

type egressArgs struct {
	ID         string   `lua:"id"`
	Generation int      `lua:"generation"`
	Entries    []string `lua:"entries"` // JSON
	Max        int      `lua:"most"`    // entries that are kept
	MaxBytes   int      `lua:"mostbytes"`
	Bytes      int64    `lua:"bytes"`
}

// AppendEgress adds entries to the log of a sandbox's connections, of which the newest Limits.MaxEgressEntries are kept, of EgressBytes at
// most, and returns how many bytes the sandbox has transferred in all. Without entries and bytes it only reads that. The log expires with the sandbox's record.
// CodeNotFound without a record, ErrFenced if the sandbox has another generation.
func (s *Store) AppendEgress(ctx context.Context, a EgressAppend) (bytes int64, err error) {
	entries := make([]string, len(a.Entries))
	for i, e := range a.Entries {
		text, err := db.Encode("entry of the egress log", e)
		if err != nil {
			return 0, err
		}
		entries[i] = string(text)
	}
	r, err := s.Run(ctx, "append to the egress log", "egress_append", a.Sandbox.Tenant, egressArgs{
		ID: a.Sandbox.ID, Generation: max(a.Generation, 1), Entries: entries, Max: s.Limits.MaxEgressEntries, MaxBytes: EgressBytes, Bytes: a.Bytes,
	})
	if err != nil {
		return 0, err
	}
	switch r.Text(0) {
	case "notfound":
		return 0, noSandbox(a.Sandbox.ID)
	case "fenced":
		return 0, db.ErrFenced
	}
	bytes, _ = strconv.ParseInt(r.Text(1), 10, 64)
	return bytes, nil
}

// SandboxSecrets reads the sealed secrets of a sandbox; nil: it has none, has ended, or Redis has lost them.
func (s *Store) SandboxSecrets(ctx context.Context, sandbox farm.Ref) ([]byte, error) {
	sealed, err := s.Redis.Get(ctx, s.Key(sandbox.Tenant, db.KeySecrets, sandbox.ID)).Bytes()
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	return sealed, db.Wrap("read the secrets of a sandbox", err)
}

const (
	// egressStretch is how many entries of a log are read at once.
	egressStretch = 100
	// egressPageBytes ends a page of a log, at the end of a stretch: an earlier release has written logs with more than EgressBytes.
	egressPageBytes = 1 << 20
)

// Egress reads the log of a sandbox's connections behind an id, the oldest first; "" is from the oldest that is kept. more says that there are
// others behind: a page of long entries has less than limit. An id that is not one is CodeInvalid. Without a record the log is empty.
func (s *Store) Egress(ctx context.Context, sandbox farm.Ref, after string, limit int) (entries []farm.EgressEntry, more bool, err error) {
	start := "-"
	if after != "" {
		if !db.EventID(after, false) {
			return nil, false, farm.Invalidf("%q is not the id of an entry. Use the id of an entry of this log, or none to start from the oldest.", db.Clip(after))
		}
		start = "(" + after
	}
	more = true
	for bytes := 0; more && len(entries) < limit && bytes < egressPageBytes; {
		want := min(limit-len(entries), egressStretch)
		found, err := s.Redis.XRangeN(ctx, s.Key(sandbox.Tenant, db.KeyEgress, sandbox.ID), start, "+", int64(want)+1).Result()
		if err != nil {
			return nil, false, db.Wrap("read the egress log", err)
		}
		more = len(found) > want
		leave, err := budget.Core(ctx, egressBytes(found))
		if err != nil {
			return nil, false, err
		}
		for _, m := range found[:min(len(found), want)] {
			var e farm.EgressEntry
			text, _ := m.Values["e"].(string)
			start, bytes = "("+m.ID, bytes+len(text)
			if json.Unmarshal([]byte(text), &e) == nil {
				e.ID = m.ID
				entries = append(entries, e)
			}
		}
		leave()
	}
	return entries, more, nil
}

func egressBytes(entries []redis.XMessage) (n int) {
	for _, m := range entries {
		text, _ := m.Values["e"].(string)
		n += len(text)
	}
	return n
}

// PackageBytes bounds what PackageJobs knows of a sandbox: the names and the ids of the jobs, together. Some 1300 usual names.
const PackageBytes = 64 << 10

// PackageJobs finds the last job that installed each package in a sandbox, by the names of Accept.Packages. Packages that no job installed
// are left out; no names at all mean every package. Of a sandbox with more than PackageBytes of them, those of earlier jobs are left out as well.
func (s *Store) PackageJobs(ctx context.Context, sandbox farm.Ref, names ...string) (map[string]string, error) {
	key := s.Key(sandbox.Tenant, db.KeyPackages, sandbox.ID)
	if len(names) == 0 {
		all, err := s.Redis.HGetAll(ctx, key).Result()
		return all, db.Wrap("list packages", err)
	}
	values, err := s.Redis.HMGet(ctx, key, names...).Result()
	if err != nil {
		return nil, db.Wrap("find packages", err)
	}
	found := make(map[string]string, len(names))
	for i, value := range values {
		if job, ok := value.(string); ok {
			found[names[i]] = job
		}
	}
	return found, nil
}

package tenants

import (
	"context"
	"strconv"
	"time"

	"github.com/sandfarm/sandfarm/internal/store/db"
)

// trimStretch bounds one script call.
const trimStretch = 500

// Trimmed counts what Trim has removed.
type Trimmed struct {
	Entries int // of indexes, whose records had expired
	Jobs    int // finished ones beyond the bound

	Documented int // records that are gone, and whose documents were removed
}

// Trim bounds what is kept of a tenant. Records expire on their own, and each new record removes the expired ones before it from the
// indexes; Trim does the rest, for tenants that add nothing, and removes documents of records that are gone. It keeps the youngest
// Limits.MaxFinished finished jobs, and those that finished within Limits.HiddenSeconds, since a caller may wait for them.
func (s *Store) Trim(ctx context.Context, tenant string) (Trimmed, error) {
	var all Trimmed
	for _, index := range []struct {
		name db.Index
		kind db.Kind
		keep string
	}{
		{db.IndexJobs, db.KeyJob, strconv.Itoa(s.Limits.MaxFinished)}, {db.IndexSandboxes, db.KeySandbox, ""}, {db.IndexOpenSandboxes, db.KeySandbox, ""},
	} {
		n, err := s.trimIndex(ctx, tenant, index.name, index.kind, index.keep)
		all.Entries, all.Jobs = all.Entries+n.Entries, all.Jobs+n.Jobs
		if err != nil {
			return all, err
		}
	}
	if err := s.trimJobMemory(ctx, tenant); err != nil {
		return all, err
	}
	n, err := s.trimDocuments(ctx, tenant)
	all.Documented = n
	return all, err
}

// trimArgs are the arguments of trim.lua.
type trimArgs struct {
	Index          string `lua:"index"`
	Records        string `lua:"records"`         // what the keys of its records begin with
	After          string `lua:"after"`           // sequence number to start behind
	Count          int    `lua:"count"`           // how many to look at
	Keep           string `lua:"keep"`            // how many entries may stay; empty: all
	FinishedBefore string `lua:"finished_before"` // microseconds: jobs that finished later stay
}

// trimIndex removes entries of jobs until a script call finds nothing to remove: they expire in about the order in which they were made.
// Sandboxes do not, since one may live for a minute and another for days, so all of their entries are looked at.
func (s *Store) trimIndex(ctx context.Context, tenant string, index db.Index, kind db.Kind, keep string) (Trimmed, error) {
	var all Trimmed
	before := db.Micros(s.Now().Add(-time.Duration(s.Limits.HiddenSeconds) * time.Second))
	for after := "-1"; ; {
		r, err := s.Run(ctx, "trim "+string(index), "trim", tenant, trimArgs{
			Index: s.Index(tenant, index), Records: s.Key(tenant, kind, ""), After: after, Count: trimStretch, Keep: keep, FinishedBefore: before,
		})
		if err != nil {
			return all, err
		}
		n := Trimmed{Entries: r.Number(2), Jobs: r.Number(3)}
		all.Entries, all.Jobs = all.Entries+n.Entries, all.Jobs+n.Jobs
		if after = r.Text(1); after == "" || kind == db.KeyJob && n.Entries == 0 && r.Number(4) == 0 {
			return all, nil
		}
	}
}

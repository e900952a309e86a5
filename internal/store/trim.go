package store

import (
	"context"
	"strconv"
	"time"
)

// trimStretch bounds one script call.
const trimStretch = 500

// Trimmed says what Trim has forgotten.
type Trimmed struct {
	Entries int // of indexes, whose records had expired
	Jobs    int // finished ones over the bound
}

// Trim bounds what is kept of a tenant. Records expire by themselves, and new ones take the expired ones before them out
// of the indexes; a tenant that is quiet keeps the rest. Of finished jobs no more than Limits.MaxFinished are kept, the
// youngest; those that finished within Limits.HiddenSeconds stay, for somebody may wait for them.
func (s *Store) Trim(ctx context.Context, tenant string) (Trimmed, error) {
	var all Trimmed
	for _, index := range []struct {
		name, kind string
		most       any
	}{{"jobs", "job", s.limits.MaxFinished}, {"boxes", "sbx", ""}, {"arts", "art", ""}} {
		n, err := s.trimIndex(ctx, tenant, index.name, index.kind, index.most)
		all.Entries, all.Jobs = all.Entries+n.Entries, all.Jobs+n.Jobs
		if err != nil {
			return all, err
		}
	}
	return all, nil
}

// trimIndex goes on as long as there is something to forget: records expire in about the order in which they were made.
func (s *Store) trimIndex(ctx context.Context, tenant, index, kind string, most any) (Trimmed, error) {
	var all Trimmed
	old := micros(s.now().Add(-time.Duration(s.limits.HiddenSeconds) * time.Second))
	for after := "-1"; ; {
		r, err := s.run(ctx, "trim "+index, s.scripts.trim, tenant, index, kind, after, trimStretch, most, old)
		if err != nil {
			return all, err
		}
		n := Trimmed{Entries: r.number(2), Jobs: r.number(3)}
		all.Entries, all.Jobs = all.Entries+n.Entries, all.Jobs+n.Jobs
		if after = r.text(1); after == "" || n.Entries == 0 && r.number(4) == 0 {
			return all, nil
		}
	}
}

// number reads a whole number of a reply; 0 where there is none.
func (r reply) number(i int) int {
	n, _ := strconv.Atoi(r.text(i))
	return n
}

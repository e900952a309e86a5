package tenants

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store/db"
)

// auditBatch is how many tenants of the audit are read at once.
const auditBatch = 100

// auditKey is a tenant's part of the audit. Each tenant has a stream of its own, so that no tenant can push out the entries of another.
// Requests without a valid key have the stream of no tenant.
func (s *Store) auditKey(tenant string) string {
	return s.Index(cmp.Or(tenant, db.SlotNobody), db.IndexAudit)
}

// AppendAudit adds entries to the audit. Of each tenant the newest Limits.MaxAudit are kept, give or take a hundred.
func (s *Store) AppendAudit(ctx context.Context, entries []farm.AuditEntry) error {
	if len(entries) == 0 {
		return nil
	}
	docs := make([][]byte, len(entries))
	for i := range entries {
		var err error
		if docs[i], err = db.Encode("audit entry", entries[i]); err != nil {
			return err
		}
	}
	_, err := s.Redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i := range entries {
			tenant := entries[i].Tenant
			pipe.XAdd(ctx, &redis.XAddArgs{Stream: s.auditKey(tenant), MaxLen: int64(s.Limits.MaxAudit), Approx: true, Values: []any{"e", docs[i]}})
			pipe.SAdd(ctx, s.Index(db.SlotAudit, db.IndexAudited), tenant)
		}
		return nil
	})
	return db.Wrap("append to the audit", err)
}

// Audit lists entries, newest first: of a tenant, or of all with "".
func (s *Store) Audit(ctx context.Context, tenant string, created db.TimeRange, p db.Page) ([]farm.AuditEntry, string, error) {
	limit := cmp.Or(p.Limit, db.PageDefault)
	from, to, err := auditRange(created, p.Cursor)
	if err != nil {
		return nil, "", err
	}
	tenants := []string{tenant}
	if tenant == "" {
		if tenants, err = s.Redis.SMembers(ctx, s.Index(db.SlotAudit, db.IndexAudited)).Result(); err != nil {
			return nil, "", db.Wrap("list tenants of the audit", err)
		}
	}
	var found []redis.XMessage // the newest ones so far
	for batch := range slices.Chunk(tenants, auditBatch) {
		lists := make([]*redis.XMessageSliceCmd, len(batch))
		if _, err := s.Redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for i, name := range batch {
				lists[i] = pipe.XRevRangeN(ctx, s.auditKey(name), to, from, int64(limit)+1)
			}
			return nil
		}); err != nil {
			return nil, "", db.Wrap("read the audit", err)
		}
		for _, list := range lists {
			found = append(found, list.Val()...)
		}
		found = newestMessages(found, limit)
	}
	next := ""
	if end := pageEnd(found, limit); end < len(found) {
		found, next = found[:end], found[end-1].ID
	}
	out := make([]farm.AuditEntry, 0, len(found))
	for _, m := range found {
		var e farm.AuditEntry
		text, _ := m.Values["e"].(string)
		if err := json.Unmarshal([]byte(text), &e); err == nil {
			out = append(out, e)
		}
	}
	return out, next, nil
}

// newestMessages sorts messages from the newest and keeps a page of them and one more.
func newestMessages(all []redis.XMessage, limit int) []redis.XMessage {
	slices.SortStableFunc(all, func(a, b redis.XMessage) int { return compareStreamIDs(b.ID, a.ID) })
	return all[:min(pageEnd(all, limit)+1, len(all))]
}

// pageEnd is where a page of sorted messages ends: behind limit of them and those with the id of the last one, since messages of
// several tenants may have one id and a cursor cannot stand between them.
func pageEnd(all []redis.XMessage, limit int) int {
	end := min(limit, len(all))
	for end > 0 && end < len(all) && all[end].ID == all[end-1].ID {
		end++
	}
	return end
}

func compareStreamIDs(a, b string) int {
	at, an := streamID(a)
	bt, bn := streamID(b)
	return cmp.Or(cmp.Compare(at, bt), cmp.Compare(an, bn))
}

func streamID(id string) (ms, n uint64) {
	first, second, _ := strings.Cut(id, "-")
	ms, _ = strconv.ParseUint(first, 10, 64)
	n, _ = strconv.ParseUint(second, 10, 64)
	return ms, n
}

// auditRange is the range of stream ids of a list, from its oldest to its newest.
func auditRange(created db.TimeRange, cursor string) (from, to string, err error) {
	from, to = "-", "+"
	if !created.After.IsZero() {
		from = strconv.FormatInt(max(created.After.UnixMilli(), 0), 10)
	}
	if !created.Before.IsZero() {
		to = strconv.FormatInt(max(created.Before.UnixMilli(), 0), 10)
	}
	if cursor != "" {
		first, second, _ := strings.Cut(cursor, "-")
		_, err := strconv.ParseUint(first, 10, 63)
		_, err2 := strconv.ParseUint(second, 10, 63)
		if err != nil || err2 != nil {
			return "", "", farm.Invalidf("%q is not a cursor of this list. Start again without a cursor.", db.Clip(cursor))
		}
		to = "(" + cursor
	}
	return from, to, nil
}

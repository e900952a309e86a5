package storetest

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func newKey(name string, at time.Time) (store.KeySum, farm.Key) {
	return sha256.Sum256([]byte(name)), farm.Key{
		ID: farm.NewID(farm.KeyPrefix), Tenant: Tenant, Name: name, Scopes: []farm.Scope{farm.ScopeRun}, CreatedAt: at.UTC(),
	}
}

func createKey(t *testing.T, s *bundle, name string, at time.Time) (store.KeySum, farm.Key) {
	t.Helper()
	sum, key := newKey(name, at)
	testbed.Must(t, s.CreateKey(t.Context(), sum, key))
	return sum, key
}

func keysAreCreatedAndDeleted(t *testing.T, f Factory) {
	s, ctx := setup(t, f), t.Context()
	at := time.Unix(1_700_000_000, 0)
	version := func() string {
		t.Helper()
		v, err := s.KeysVersion(ctx)
		testbed.Must(t, err)
		return v
	}
	set := func() store.KeySet {
		t.Helper()
		set, err := s.KeySet(ctx)
		if err != nil || set.Version != version() {
			t.Fatalf("version %q, %v; want %q", set.Version, err, version())
		}
		return set
	}
	if set := set(); set.Version != "" || set.Len() != 0 {
		t.Errorf("an empty farm has %d keys, version %q", set.Len(), set.Version)
	}
	sum, key := createKey(t, s, "first", at)
	other, second := createKey(t, s, "second", at.Add(time.Second))
	tenants, err := s.Tenants(ctx)
	testbed.Check(t, err == nil && len(tenants) == 1 && tenants[0] == Tenant, "Tenants = %v, %v", tenants, err)
	before := set()
	for sum, want := range map[store.KeySum]farm.Key{sum: key, other: second} {
		got, ok := before.Find(sum)
		diff := cmp.Diff(want, got)
		testbed.Check(t, ok && diff == "", "found %t (-want +got):\n%s", ok, diff)
	}
	_, ok := before.Find(sha256.Sum256(nil))
	testbed.Check(t, !ok, "an unknown hash is found")

	testbed.Must(t, s.NoteKeyUse(ctx, map[string]time.Time{key.ID: at.Add(time.Hour), "key_unknown": at}))
	key.LastUsedAt = at.Add(time.Hour).UTC()
	listed, err := s.Keys(ctx)
	diff := cmp.Diff([]farm.Key{second, key}, listed)
	testbed.Check(t, diff == "" && err == nil, "%v, list (-want +got):\n%s", err, diff)
	testbed.Check(t, set().Version == before.Version, "a use changes the version")

	key.LastUsedAt = time.Time{}
	if got, err := s.DeleteKey(ctx, key.ID); err != nil || !cmp.Equal(key, got) {
		t.Errorf("deleted %+v, %v", got, err)
	}
	after := set()
	_, ok = after.Find(sum)
	testbed.Check(t, !ok && after.Len() == 1 && after.Version != before.Version, "%d keys after a deletion, version %q", after.Len(), after.Version)
	if _, err := s.DeleteKey(ctx, key.ID); farm.CodeOf(err) != farm.CodeNotFound {
		t.Errorf("deleted twice: %v", err)
	}
	testbed.Must(t, s.NoteKeyUse(ctx, map[string]time.Time{key.ID: at}))
	_, err = s.DeleteKey(ctx, second.ID)
	testbed.Must(t, err)
	left, err := s.rdb.Keys(ctx, s.prefix+"*").Result()
	slices.Sort(left)
	diff = cmp.Diff([]string{s.prefix + "tenants", s.prefix + "{farm:keys}:version"}, left)
	testbed.Check(t, diff == "" && err == nil, "%v, Redis keys without API keys (-want +got):\n%s", err, diff)
}

func keysAreBounded(t *testing.T, f Factory) {
	const limit = 5
	s, ctx := setup(t, f, func(l *farm.Limits) { l.MaxKeys = limit }), t.Context()
	var last farm.Key
	for i := range limit {
		_, last = createKey(t, s, fmt.Sprint(i), time.Now())
	}
	sum, key := newKey("one more", time.Now())
	if err := s.CreateKey(ctx, sum, key); farm.CodeOf(err) != farm.CodeExhausted {
		t.Errorf("key %d: %v", limit+1, err)
	}
	if set, err := s.KeySet(ctx); err != nil || set.Len() != limit {
		t.Errorf("%d keys, %v", set.Len(), err)
	}
	_, err := s.DeleteKey(ctx, last.ID)
	testbed.Must(t, err)
	err = s.CreateKey(ctx, sum, key)
	testbed.Check(t, err == nil, "after a deletion: %v", err)
}

func expiredKeysAreTrimmed(t *testing.T, f Factory) {
	s, ctx := setup(t, f), t.Context()
	at := time.Unix(1_700_000_000, 0).UTC()
	_, forever := createKey(t, s, "forever", at)
	kept := []string{forever.ID}
	for name, expires := range map[string]time.Time{"old": at.Add(-time.Nanosecond), "now": at, "new": at.Add(time.Second)} {
		sum, key := newKey(name, at)
		if key.ExpiresAt = expires; name != "old" {
			kept = append(kept, key.ID)
		}
		testbed.Must(t, s.CreateKey(ctx, sum, key))
	}
	n, err := s.TrimKeys(ctx, at)
	testbed.Check(t, n == 1 && err == nil, "trimmed %d, %v", n, err)
	left, err := s.Keys(ctx)
	testbed.Check(t, err == nil && len(left) == len(kept), "%d are left, %v; want %d", len(left), err, len(kept))
}

func auditIsListed(t *testing.T, f Factory) {
	s, ctx := setup(t, f), t.Context()
	var all, blue []farm.AuditEntry
	for i := range 25 {
		e := farm.AuditEntry{ID: farm.NewID(farm.AuditPrefix), Tenant: []string{"blue", "red", ""}[i%3], Route: fmt.Sprint("POST /", i), Status: 200}
		testbed.Must(t, s.AppendAudit(ctx, []farm.AuditEntry{e}))
		all = append(all, e)
		if e.Tenant == "blue" {
			blue = append(blue, e)
		}
	}
	for tenant, want := range map[string][]farm.AuditEntry{"": all, "blue": blue, "green": nil} {
		seen := map[string]bool{}
		cursor, pages := "", 0
		for {
			page, next, err := s.Audit(ctx, tenant, store.TimeRange{}, store.Page{Limit: 4, Cursor: cursor})
			testbed.Require(t, err == nil && (len(page) != 0 || len(want) == 0), "%q, page %d: %d entries, %v", tenant, pages, len(page), err)
			for _, e := range page {
				testbed.Check(t, !seen[e.ID], "%q: %s is listed twice", tenant, e.Route)
				seen[e.ID] = true
			}
			if pages++; next == "" || pages > 30 {
				break
			}
			cursor = next
		}
		for _, e := range want {
			testbed.Check(t, seen[e.ID], "%q: %s is missing", tenant, e.Route)
		}
		testbed.Diff(t, fmt.Sprintf("%q: entries", tenant), len(want), len(seen))
	}
	newest, _, err := s.Audit(ctx, "blue", store.TimeRange{}, store.Page{Limit: 1})
	diff := cmp.Diff([]farm.AuditEntry{blue[len(blue)-1]}, newest)
	testbed.Check(t, diff == "" && err == nil, "%v, newest (-want +got):\n%s", err, diff)
	_, _, err = s.Audit(ctx, "", store.TimeRange{}, store.Page{Cursor: "x"})
	testbed.Check(t, farm.CodeOf(err) == farm.CodeInvalid, "a bad cursor: %v", err)
}

// A tenant that does much pushes out its own entries, never those of another.
func auditIsBounded(t *testing.T, f Factory) {
	const limit = 100
	s, ctx := setup(t, f, func(l *farm.Limits) { l.MaxAudit = limit }), t.Context()
	testbed.Must(t, s.AppendAudit(ctx, []farm.AuditEntry{{ID: "quiet", Tenant: "quiet"}}))
	for range 20 {
		batch := make([]farm.AuditEntry, 100)
		for i := range batch {
			batch[i] = farm.AuditEntry{ID: "x", Tenant: "loud"}
		}
		testbed.Must(t, s.AppendAudit(ctx, batch))
	}
	n := s.rdb.XLen(ctx, s.prefix+"{loud}:audit").Val()
	testbed.Check(t, n >= limit && n <= limit+100, "%d entries of 2000 are kept, want about %d", n, limit)
	kept, _, err := s.Audit(ctx, "quiet", store.TimeRange{}, store.Page{})
	testbed.Check(t, err == nil && len(kept) == 1, "%d entries of the quiet tenant, %v", len(kept), err)
}

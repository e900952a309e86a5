package storetest

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// A tenant's list of hosts is stored beside its other settings. An empty list is not the same as none.
func hostsOfATenant(t *testing.T, factory Factory) {
	b := setup(t, factory)
	var rules []farm.HostRule
	for _, text := range []string{"a.example.com", "GET,HEAD *.example.net:8080", "*"} {
		r, err := farm.ParseHostRule(text)
		testbed.Must(t, err)
		rules = append(rules, r)
	}
	runtimes := []string{"runsc"}
	testbed.Must(t, b.ChangeTenant(t.Context(), Tenant, store.TenantChange{Runtimes: &runtimes}))
	for _, hosts := range []store.TenantHosts{{Rules: rules}, {}, {Farm: true}, {Rules: rules[:1]}} {
		testbed.Must(t, b.ChangeTenant(t.Context(), Tenant, store.TenantChange{Hosts: &hosts}))
		got, err := b.TenantLists(t.Context(), Tenant)
		testbed.Must(t, err)
		want := store.TenantLists{Runtimes: runtimes, Hosts: hosts}
		testbed.Diff(t, "", want, got, cmp.Comparer(func(x, y farm.HostRule) bool { return x == y }))
		testbed.Diff(t, fmt.Sprintf("%+v covers a host", hosts), hosts.Farm || len(hosts.Rules) > 0, got.Hosts.Covers(rules[0]))
	}
	limit := store.TenantHosts{Rules: make([]farm.HostRule, farm.MaxTenantHosts+1)}
	wantCode(t, "too many rules", b.ChangeTenant(t.Context(), Tenant, store.TenantChange{Hosts: &limit}), farm.CodeInvalid)
	got, err := b.TenantLists(t.Context(), "other")
	testbed.Check(t, err == nil && got.Hosts.Farm, "another tenant has %+v, %v", got, err)
}

// usageIsAddedOnce sends samples of a sandbox as two workers would: each counter is added once, and a new container begins at 0.
func usageIsAddedOnce(t *testing.T, factory Factory) {
	b := setup(t, factory, func(l *farm.Limits) { l.UsageDays = 3 })
	b.clock.at = time.Date(2026, 11, 22, 23, 0, 0, 0, time.UTC)
	box := b.box(t, farm.SandboxReady)
	add := func(container string, cpu time.Duration, gb int64, gpus int) store.Usage {
		t.Helper()
		got, err := b.AddUsage(t.Context(), store.Sample{Sandbox: box, Container: container, CPU: cpu, MemoryKB: gb << 20, GPUs: gpus})
		testbed.Must(t, err)
		return got
	}
	want := func(days ...store.Usage) {
		t.Helper()
		got, err := b.Usage(t.Context(), Tenant, 30)
		diff := cmp.Diff(days, got, cmpopts.EquateApprox(0, 1e-3), cmpopts.EquateEmpty())
		testbed.Check(t, err == nil && diff == "", "usage: %v (-want +got):\n%s", err, diff)
	}
	want()
	b.clock.forward(10 * time.Second)
	got := add("c1", 4*time.Second, 2, 1)
	testbed.Check(t, got.CPUSeconds == 4 && got.SandboxSeconds == 10, "the first sample adds %+v", got)
	add("c1", 4*time.Second, 2, 1) // another worker, at the same time
	first := store.Usage{Day: "2026-11-22", CPUSeconds: 4, MemoryGBSeconds: 20, GPUSeconds: 10, SandboxSeconds: 10}
	want(first)
	b.clock.forward(10 * time.Second)
	add("c1", 6*time.Second, 4, 1)
	add("c1", 5*time.Second, 4, 1) // an old sample that was delayed
	second := store.Usage{Day: "2026-11-22", CPUSeconds: 6, MemoryGBSeconds: 50, GPUSeconds: 20, SandboxSeconds: 20}
	want(second)
	add("c2", time.Second, 1, 1) // a new container of the same sandbox
	second.CPUSeconds = 7
	want(second)

	b.clock.forward(2 * time.Hour) // the next day
	b.end(t, box.ID)
	add("c2", 11*time.Second, 1, 0)
	want(second, store.Usage{Day: "2026-11-23", CPUSeconds: 10, MemoryGBSeconds: 7200, SandboxSeconds: 7200})
	b.clock.forward(48 * time.Hour) // no day is shown for longer than usage_days
	want(store.Usage{Day: "2026-11-23", CPUSeconds: 10, MemoryGBSeconds: 7200, SandboxSeconds: 7200})

	gone := store.Sample{Sandbox: farm.Ref{Tenant: Tenant, ID: "sbx_gone"}, Container: "c", CPU: time.Hour}
	got, err := b.AddUsage(t.Context(), gone)
	testbed.Check(t, err == nil && got.CPUSeconds == 0, "a sandbox without a record adds %+v, %v", got, err)
	n := b.rdb.Exists(t.Context(), b.prefix+"{"+Tenant+"}:sbx:sbx_gone").Val()
	testbed.Check(t, n == 0, "the sample of a sandbox without a record made one")
	ttl := b.rdb.TTL(t.Context(), b.prefix+"{"+Tenant+"}:usage:2026-11-23").Val()
	testbed.Check(t, ttl > 0 && ttl <= 3*24*time.Hour, "a day of usage is kept for %s, want three days", ttl)
}

// recentUseIsBounded takes more samples than a record remembers: the newest stay, and those that are less than a second apart count as one.
func recentUseIsBounded(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	var cpu time.Duration
	for i := range farm.MaxUseSamples + 1 {
		b.clock.forward(10 * time.Second)
		cpu += 5 * time.Second
		for range 2 { // the second one adds nothing
			_, err := b.AddUsage(t.Context(), store.Sample{Sandbox: box, Container: "c", CPU: cpu, MemoryKB: int64(i+1) << 10})
			testbed.Must(t, err)
		}
		got := b.sandbox(t, box).Recent
		if len(got) != min(i+1, farm.MaxUseSamples) || got[len(got)-1] != (farm.UseSample{CPUs: 0.5, MemoryMB: i + 1}) {
			t.Fatalf("after %d samples: %v", i+1, got)
		}
	}
}

// storedBytesAreUsage: what is stored is counted by the time that it is stored.
func storedBytesAreUsage(t *testing.T, factory Factory) {
	b := setup(t, factory)
	b.clock.at = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	step := func() {
		t.Helper()
		testbed.Must(t, b.AddStored(t.Context(), Tenant))
	}
	testbed.Must(t, b.rdb.HSet(t.Context(), b.prefix+"{"+Tenant+"}:stored", "bytes", 3<<30).Err())
	step() // since when they are stored is not known
	b.clock.forward(time.Minute)
	step()
	step()
	b.clock.forward(-time.Hour) // a clock that went back
	step()
	b.clock.forward(time.Hour)
	step()
	got, err := b.Usage(t.Context(), Tenant, 1)
	testbed.Check(t, err == nil && len(got) == 1 && got[0].StoredGBSeconds == 180, "usage = %+v, %v; want 3 GiB for a minute", got, err)
}

func redisZ(score float64, member string) redis.Z { return redis.Z{Score: score, Member: member} }

// requestRate sends one request less than the quota, as many, and one more: its refusal says when the next one is allowed. The quota is a small one, so
// that none is allowed again while the test runs.
func requestRate(t *testing.T, factory Factory) {
	b := setup(t, factory)
	quotas := farm.DefaultQuotas()
	quotas.RequestsPerMinute = 3
	for i := range 3 {
		got, err := b.Admit(t.Context(), Tenant, fmt.Sprint(i), quotas)
		testbed.Check(t, err == nil && got.Limited && got.Left == 2-i && got.Full > 0 && got.Full <= time.Minute, "request %d: %+v, %v", i, got, err)
	}
	for range 2 { // a refused request does not count: the wait does not grow
		_, err := b.Admit(t.Context(), Tenant, "x", quotas)
		wantCode(t, "a request beyond the rate", err, farm.CodeExhausted)
		e, ok := errors.AsType[*farm.Error](err)
		if !ok || e.Quota == nil || e.Quota.RetryAfter <= 0 || e.Quota.RetryAfter > 20*time.Second || e.Quota.Name != farm.QuotaRequests {
			t.Errorf("the refusal is %+v", err)
		}
	}
	if _, err := b.Admit(t.Context(), "other", "x", quotas); err != nil {
		t.Errorf("another tenant's request: %v", err)
	}
	got := b.used(t, farm.QuotaRequests)
	testbed.Check(t, got == 0, "without a quota %v requests are used", got)
	b.quota(t, farm.QuotaRequests, 3)
	got = b.used(t, farm.QuotaRequests)
	testbed.Check(t, got == 3, "%v requests are used, want 3", got)
	quotas.RequestsPerMinute = 0
	_, err := b.Admit(t.Context(), "nobody", "x", quotas)
	wantCode(t, "a request of a tenant that may send none", err, farm.CodeExhausted)
	quotas.RequestsPerMinute = farm.NoQuota
	if got, err := b.Admit(t.Context(), Tenant, "x", quotas); err != nil || got.Limited {
		t.Errorf("without a quota: %+v, %v", got, err)
	}
}

// requestsOfABatch: as many as the rate allows are admitted, and the refusal of the others says when the next one is allowed.
func requestsOfABatch(t *testing.T, factory Factory) {
	b := setup(t, factory)
	quotas := farm.DefaultQuotas()
	quotas.RequestsPerMinute = 3
	_, err := b.Admit(t.Context(), Tenant, "x", quotas)
	testbed.Must(t, err)
	for _, c := range []struct{ requests, admitted int }{{1, 1}, {4, 1}, {4, 0}} {
		got, err := b.AdmitMore(t.Context(), Tenant, c.requests, quotas)
		if got != c.admitted || (err == nil) != (got == c.requests) {
			t.Errorf("%d requests: %d are admitted, want %d; %v", c.requests, got, c.admitted, err)
		}
		if err == nil {
			continue
		}
		wantCode(t, "requests beyond the rate", err, farm.CodeExhausted)
		e, ok := errors.AsType[*farm.Error](err)
		testbed.Check(t, ok && e.Quota != nil && e.Quota.RetryAfter > 0 && e.Quota.RetryAfter <= 20*time.Second, "the refusal is %+v", err)
	}
	quotas.RequestsPerMinute = farm.NoQuota
	got, err := b.AdmitMore(t.Context(), Tenant, 1000, quotas)
	testbed.Check(t, got == 1000 && err == nil, "without a quota %d are admitted, %v", got, err)
}

// requestRateAfterTheClockWentBack: a time far in the future, as of a Redis whose clock was wrong, blocks no caller for longer than a minute.
func requestRateAfterTheClockWentBack(t *testing.T, factory Factory) {
	b := setup(t, factory)
	future := time.Now().Add(1000 * time.Hour).UnixMicro()
	testbed.Must(t, b.rdb.Set(t.Context(), b.prefix+"{"+Tenant+"}:rate", future, 0).Err())
	quotas := farm.DefaultQuotas()
	quotas.RequestsPerMinute = 60
	_, err := b.Admit(t.Context(), Tenant, "x", quotas)
	e, ok := errors.AsType[*farm.Error](err)
	testbed.Check(t, ok && e.Quota != nil && e.Quota.RetryAfter <= time.Minute, "the refusal is %v", err)
}

// connectionsAreLeased opens as many connections as the quota at once, and one more; the leases of a server that died end.
func connectionsAreLeased(t *testing.T, factory Factory) {
	b := setup(t, factory)
	quotas := farm.DefaultQuotas()
	quotas.MaxConnections = 5
	var open atomic.Int64
	var callers sync.WaitGroup
	for i := range 50 {
		callers.Go(func() {
			if _, err := b.Admit(t.Context(), Tenant, fmt.Sprint(i), quotas); err == nil {
				open.Add(1)
			} else {
				wantCode(t, "a connection", err, farm.CodeExhausted)
			}
		})
	}
	callers.Wait()
	if open.Load() != 5 || b.used(t, farm.QuotaConnections) != 5 {
		t.Errorf("%d of 50 connections are open, %v counted; want 5", open.Load(), b.used(t, farm.QuotaConnections))
	}
	_, err := b.Admit(t.Context(), Tenant, "late", quotas)
	e, ok := errors.AsType[*farm.Error](err)
	testbed.Check(t, ok && e.Quota != nil && e.Quota.Used == 5 && e.Quota.Limit == 5, "the refusal is %v", err)
	conn := b.prefix + "{" + Tenant + "}:conn"
	held, err := b.rdb.ZRange(t.Context(), conn, 0, -1).Result()
	testbed.Require(t, err == nil && len(held) == 5, "leases: %v, %v", held, err)
	testbed.Must(t, b.EndConnection(t.Context(), Tenant, held[0]))
	_, err = b.Admit(t.Context(), Tenant, "next", quotas)
	testbed.Check(t, err == nil, "after one has ended: %v", err)

	// Two leases end, as if the clock had moved on; one is renewed.
	past := float64(time.Now().Add(-time.Second).UnixMicro())
	for _, id := range held[1:4] {
		testbed.Must(t, b.rdb.ZAdd(t.Context(), conn, redis.Z{Score: past, Member: id}).Err())
	}
	testbed.Must(t, b.RenewConnections(t.Context(), map[string][]string{Tenant: {held[1]}}))
	for i, want := range []bool{true, true, false} {
		_, err := b.Admit(t.Context(), Tenant, fmt.Sprintf("more%d", i), quotas)
		testbed.Check(t, (err == nil) == want, "connection %d after two leases ended: %v", i, err)
	}
	ttl := b.rdb.PTTL(t.Context(), conn).Val()
	testbed.Check(t, ttl > 0, "the leases of a server that died stay forever: they live %s", ttl)
}

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

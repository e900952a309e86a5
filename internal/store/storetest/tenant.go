package storetest

import (
	"errors"
	"fmt"
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

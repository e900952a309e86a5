package storetest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
)

func redisZ(score float64, member string) redis.Z { return redis.Z{Score: score, Member: member} }

// requestRate sends one request less than the quota, as many, and one more: its refusal says when the next one is allowed. The quota is a small one, so
// that none is allowed again while the test runs.
func requestRate(t *testing.T, factory Factory) {
	b := setup(t, factory)
	quotas := farm.DefaultQuotas()
	quotas.RequestsPerMinute = 3
	for i := range 3 {
		got, err := b.Admit(t.Context(), Tenant, fmt.Sprint(i), quotas)
		if err != nil || !got.Limited || got.Left != 2-i || got.Full <= 0 || got.Full > time.Minute {
			t.Errorf("request %d: %+v, %v", i, got, err)
		}
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
	if got := b.used(t, farm.QuotaRequests); got != 0 {
		t.Errorf("without a quota %v requests are used", got)
	}
	b.quota(t, farm.QuotaRequests, 3)
	if got := b.used(t, farm.QuotaRequests); got != 3 {
		t.Errorf("%v requests are used, want 3", got)
	}
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
	if _, err := b.Admit(t.Context(), Tenant, "x", quotas); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ requests, admitted int }{{1, 1}, {4, 1}, {4, 0}} {
		got, err := b.AdmitMore(t.Context(), Tenant, c.requests, quotas)
		if got != c.admitted || (err == nil) != (got == c.requests) {
			t.Errorf("%d requests: %d are admitted, want %d; %v", c.requests, got, c.admitted, err)
		}
		if err == nil {
			continue
		}
		wantCode(t, "requests beyond the rate", err, farm.CodeExhausted)
		if e, ok := errors.AsType[*farm.Error](err); !ok || e.Quota == nil || e.Quota.RetryAfter <= 0 || e.Quota.RetryAfter > 20*time.Second {
			t.Errorf("the refusal is %+v", err)
		}
	}
	quotas.RequestsPerMinute = farm.NoQuota
	if got, err := b.AdmitMore(t.Context(), Tenant, 1000, quotas); got != 1000 || err != nil {
		t.Errorf("without a quota %d are admitted, %v", got, err)
	}
}

// requestRateAfterTheClockWentBack: a time far in the future, as of a Redis whose clock was wrong, blocks no caller for longer than a minute.
func requestRateAfterTheClockWentBack(t *testing.T, factory Factory) {
	b := setup(t, factory)
	future := time.Now().Add(1000 * time.Hour).UnixMicro()
	if err := b.rdb.Set(t.Context(), b.prefix+"{"+Tenant+"}:rate", future, 0).Err(); err != nil {
		t.Fatal(err)
	}
	quotas := farm.DefaultQuotas()
	quotas.RequestsPerMinute = 60
	_, err := b.Admit(t.Context(), Tenant, "x", quotas)
	e, ok := errors.AsType[*farm.Error](err)
	if !ok || e.Quota == nil || e.Quota.RetryAfter > time.Minute {
		t.Errorf("the refusal is %v", err)
	}
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
	if !ok || e.Quota == nil || e.Quota.Used != 5 || e.Quota.Limit != 5 {
		t.Errorf("the refusal is %v", err)
	}
	conn := b.prefix + "{" + Tenant + "}:conn"
	held, err := b.rdb.ZRange(t.Context(), conn, 0, -1).Result()
	if err != nil || len(held) != 5 {
		t.Fatalf("leases: %v, %v", held, err)
	}
	if err := b.EndConnection(t.Context(), Tenant, held[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Admit(t.Context(), Tenant, "next", quotas); err != nil {
		t.Errorf("after one has ended: %v", err)
	}

	// Two leases end, as if the clock had moved on; one is renewed.
	past := float64(time.Now().Add(-time.Second).UnixMicro())
	for _, id := range held[1:4] {
		if err := b.rdb.ZAdd(t.Context(), conn, redis.Z{Score: past, Member: id}).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.RenewConnections(t.Context(), map[string][]string{Tenant: {held[1]}}); err != nil {
		t.Fatal(err)
	}
	for i, want := range []bool{true, true, false} {
		if _, err := b.Admit(t.Context(), Tenant, fmt.Sprintf("more%d", i), quotas); (err == nil) != want {
			t.Errorf("connection %d after two leases ended: %v", i, err)
		}
	}
	if ttl := b.rdb.PTTL(t.Context(), conn).Val(); ttl <= 0 {
		t.Errorf("the leases of a server that died stay forever: they live %s", ttl)
	}
}

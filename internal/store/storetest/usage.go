package storetest

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// usageIsAddedOnce sends samples of a sandbox as two workers would: each counter is added once, and a new container begins at 0.
func usageIsAddedOnce(t *testing.T, factory Factory) {
	b := setup(t, factory, func(l *farm.Limits) { l.UsageDays = 3 })
	b.clock.at = time.Date(2026, 11, 22, 23, 0, 0, 0, time.UTC)
	box := b.box(t, farm.SandboxReady)
	add := func(container string, cpu time.Duration, gb int64, gpus int) store.Usage {
		t.Helper()
		got, err := b.AddUsage(t.Context(), store.Sample{Sandbox: box, Container: container, CPU: cpu, MemoryKB: gb << 20, GPUs: gpus})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	want := func(days ...store.Usage) {
		t.Helper()
		got, err := b.Usage(t.Context(), Tenant, 30)
		if diff := cmp.Diff(days, got, cmpopts.EquateApprox(0, 1e-3), cmpopts.EquateEmpty()); err != nil || diff != "" {
			t.Errorf("usage: %v (-want +got):\n%s", err, diff)
		}
	}
	want()
	b.clock.forward(10 * time.Second)
	if got := add("c1", 4*time.Second, 2, 1); got.CPUSeconds != 4 || got.SandboxSeconds != 10 {
		t.Errorf("the first sample adds %+v", got)
	}
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
	if got, err := b.AddUsage(t.Context(), gone); err != nil || got.CPUSeconds != 0 {
		t.Errorf("a sandbox without a record adds %+v, %v", got, err)
	}
	if n := b.rdb.Exists(t.Context(), b.prefix+"{"+Tenant+"}:sbx:sbx_gone").Val(); n != 0 {
		t.Error("the sample of a sandbox without a record made one")
	}
	if ttl := b.rdb.TTL(t.Context(), b.prefix+"{"+Tenant+"}:usage:2026-11-23").Val(); ttl <= 0 || ttl > 3*24*time.Hour {
		t.Errorf("a day of usage is kept for %s, want three days", ttl)
	}
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
			if _, err := b.AddUsage(t.Context(), store.Sample{Sandbox: box, Container: "c", CPU: cpu, MemoryKB: int64(i+1) << 10}); err != nil {
				t.Fatal(err)
			}
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
		if err := b.AddStored(t.Context(), Tenant); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.rdb.HSet(t.Context(), b.prefix+"{"+Tenant+"}:stored", "bytes", 3<<30).Err(); err != nil {
		t.Fatal(err)
	}
	step() // since when they are stored is not known
	b.clock.forward(time.Minute)
	step()
	step()
	b.clock.forward(-time.Hour) // a clock that went back
	step()
	b.clock.forward(time.Hour)
	step()
	got, err := b.Usage(t.Context(), Tenant, 1)
	if err != nil || len(got) != 1 || got[0].StoredGBSeconds != 180 {
		t.Errorf("usage = %+v, %v; want 3 GiB for a minute", got, err)
	}
}

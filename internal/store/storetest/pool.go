package storetest

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

func pooled(id, node string) store.Member {
	return store.Member{
		ID: id, Node: node, Container: "c-" + id, Image: "python", Network: farm.NetworkPackages, Version: "v1", Worker: "w",
		Resources: farm.Resources{MemoryMB: 2048, CPUs: 2, PIDs: 256, DiskMB: 1024},
	}
}

func wanted(nodes ...string) store.MemberClaim {
	return store.MemberClaim{Tenant: Tenant, Image: "python", Network: farm.NetworkPackages, DiskMB: 1024, Nodes: nodes}
}

func (b *bundle) member(t *testing.T, m store.Member) {
	t.Helper()
	if err := errors.Join(b.BeginMember(t.Context(), m), b.MemberReady(t.Context(), m)); err != nil {
		t.Fatal(err)
	}
}

// A member is claimed once, the oldest first, and only by a create that it can serve.
func poolClaimsTheOldestMatch(t *testing.T, factory Factory) {
	b := setup(t, factory)
	first, second := pooled("sbx_1", "n1"), pooled("sbx_2", "n2")
	if err := b.BeginMember(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if m, err := b.ClaimMember(t.Context(), wanted("n1", "n2")); !errors.Is(err, store.ErrNoMember) {
		t.Fatalf("claim of a member that starts = %+v, %v", m, err)
	}
	for range 2 { // the second call imitates a retry after a lost answer
		if err := b.MemberReady(t.Context(), first); err != nil {
			t.Fatal(err)
		}
	}
	b.clock.forward(time.Second)
	b.member(t, second)
	for name, change := range map[string]func(*store.MemberClaim){
		"another image":   func(c *store.MemberClaim) { c.Image = "node" },
		"another network": func(c *store.MemberClaim) { c.Network = farm.NetworkNone },
		"another runtime": func(c *store.MemberClaim) { c.Runtime = "runsc" },
		"another disk":    func(c *store.MemberClaim) { c.DiskMB = 512 },
		"dead nodes":      func(c *store.MemberClaim) { c.Nodes = []string{"n3"} },
		"no node":         func(c *store.MemberClaim) { c.Nodes = nil },
	} {
		c := wanted("n1", "n2")
		change(&c)
		if m, err := b.ClaimMember(t.Context(), c); !errors.Is(err, store.ErrNoMember) {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
	}
	got, err := b.ClaimMember(t.Context(), wanted("n1", "n2"))
	if err != nil {
		t.Fatal(err)
	}
	want := first
	want.State, want.Tenant, want.At = store.MemberClaimed, Tenant, got.At
	if diff := cmp.Diff(&want, got); diff != "" {
		t.Errorf("claimed (-want +got):\n%s", diff)
	}
	if m, err := b.ClaimMember(t.Context(), wanted("n1")); !errors.Is(err, store.ErrNoMember) {
		t.Errorf("claimed twice: %+v, %v", m, err)
	}
	if m, err := b.ClaimMember(t.Context(), wanted("n1", "n2")); err != nil || m.ID != "sbx_2" {
		t.Errorf("second claim = %+v, %v", m, err)
	}
	if list, err := b.Members(t.Context(), "n1"); err != nil || len(list) != 1 || list[0].State != store.MemberClaimed || list[0].Tenant != Tenant {
		t.Errorf("members of n1 = %+v, %v", list, err)
	}
}

// A member is returned after a refused create, but only by the tenant that claimed it.
func poolTakesMembersBack(t *testing.T, factory Factory) {
	b := setup(t, factory)
	b.member(t, pooled("sbx_1", "n1"))
	b.clock.forward(time.Second)
	b.member(t, pooled("sbx_2", "n1"))
	m, err := b.ClaimMember(t.Context(), wanted("n1"))
	if err != nil {
		t.Fatal(err)
	}
	if err := b.ReturnMember(t.Context(), m.ID, "other"); !errors.Is(err, store.ErrNoMember) {
		t.Errorf("returned by another tenant: %v", err)
	}
	if err := b.ReturnMember(t.Context(), m.ID, Tenant); err != nil {
		t.Fatal(err)
	}
	if err := b.ReturnMember(t.Context(), m.ID, Tenant); !errors.Is(err, store.ErrNoMember) {
		t.Errorf("returned twice: %v", err)
	}
	again, err := b.ClaimMember(t.Context(), wanted("n1"))
	if err != nil || again.ID != "sbx_1" { // it is still the oldest
		t.Fatalf("claimed again = %+v, %v", again, err)
	}
	if err := b.DropMember(t.Context(), "sbx_1", store.MemberIdle, store.MemberStarting); !errors.Is(err, store.ErrNoMember) {
		t.Errorf("a claimed member was dropped as idle: %v", err)
	}
	if err := b.DropMember(t.Context(), "sbx_1", store.MemberClaimed); err != nil {
		t.Error(err)
	}
	if err := b.DropMember(t.Context(), "sbx_2", store.MemberIdle); err != nil {
		t.Error(err)
	}
	if _, err := b.Member(t.Context(), "sbx_2"); !errors.Is(err, store.ErrNoMember) {
		t.Errorf("a dropped member exists: %v", err)
	}
	if err := b.MemberReady(t.Context(), pooled("sbx_2", "n1")); !errors.Is(err, store.ErrNoMember) {
		t.Errorf("a dropped member became ready: %v", err)
	}
	if list, err := b.Members(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("left are %+v, %v", list, err)
	}
	if keys := b.keys(t, "{pool}*"); len(keys) != 0 {
		t.Errorf("left are keys %v", keys)
	}
}

// 50 creates at once get each member of 20 once.
func poolClaimsOnce(t *testing.T, factory Factory) {
	b := setup(t, factory)
	for i := range 20 {
		b.member(t, pooled(fmt.Sprintf("sbx_%02d", i), "n1"))
	}
	var mu sync.Mutex
	var group sync.WaitGroup
	got, misses := map[string]int{}, 0
	for range 50 {
		group.Go(func() {
			m, err := b.ClaimMember(t.Context(), wanted("n1"))
			mu.Lock()
			defer mu.Unlock()
			switch {
			case errors.Is(err, store.ErrNoMember):
				misses++
			case err != nil:
				t.Error(err)
			default:
				got[m.ID]++
			}
		})
	}
	group.Wait()
	if len(got) != 20 || misses != 30 {
		t.Errorf("%d members were claimed, %d creates got none; want 20 and 30", len(got), misses)
	}
}

func (b *bundle) keys(t *testing.T, pattern string) []string {
	t.Helper()
	keys, err := b.rdb.Keys(t.Context(), b.prefix+pattern).Result()
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

package storetest

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// A tenant's list of hosts is stored beside its other settings. An empty list is not the same as none.
func hostsOfATenant(t *testing.T, factory Factory) {
	b := setup(t, factory)
	var rules []farm.HostRule
	for _, text := range []string{"a.example.com", "GET,HEAD *.example.net:8080", "*"} {
		r, err := farm.ParseHostRule(text)
		if err != nil {
			t.Fatal(err)
		}
		rules = append(rules, r)
	}
	runtimes := []string{"runsc"}
	if err := b.ChangeTenant(t.Context(), Tenant, store.TenantChange{Runtimes: &runtimes}); err != nil {
		t.Fatal(err)
	}
	for _, hosts := range []store.TenantHosts{{Rules: rules}, {}, {Farm: true}, {Rules: rules[:1]}} {
		if err := b.ChangeTenant(t.Context(), Tenant, store.TenantChange{Hosts: &hosts}); err != nil {
			t.Fatal(err)
		}
		got, err := b.TenantLists(t.Context(), Tenant)
		if err != nil {
			t.Fatal(err)
		}
		want := store.TenantLists{Runtimes: runtimes, Hosts: hosts}
		if diff := cmp.Diff(want, got, cmp.Comparer(func(x, y farm.HostRule) bool { return x == y })); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if covers, want := got.Hosts.Covers(rules[0]), hosts.Farm || len(hosts.Rules) > 0; covers != want {
			t.Errorf("%+v covers a host: %v, want %v", hosts, covers, want)
		}
	}
	most := store.TenantHosts{Rules: make([]farm.HostRule, farm.MaxTenantHosts+1)}
	wantCode(t, "too many rules", b.ChangeTenant(t.Context(), Tenant, store.TenantChange{Hosts: &most}), farm.CodeInvalid)
	if got, err := b.TenantLists(t.Context(), "other"); err != nil || !got.Hosts.Farm {
		t.Errorf("another tenant has %+v, %v", got, err)
	}
}

package farm_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
)

func TestAllows(t *testing.T) {
	t.Parallel()
	want := map[farm.Scope][]farm.Scope{
		farm.ScopeRun:     {farm.ScopeRun, farm.ScopeRead},
		farm.ScopeRead:    {farm.ScopeRead},
		farm.ScopeMetrics: {farm.ScopeMetrics},
		farm.ScopeAdmin:   {farm.ScopeRead, farm.ScopeMetrics, farm.ScopeAdmin},
	}
	for _, has := range farm.Scopes() {
		var got []farm.Scope
		for _, need := range farm.Scopes() {
			if farm.Allows([]farm.Scope{has}, need) {
				got = append(got, need)
			}
		}
		if diff := cmp.Diff(want[has], got); diff != "" {
			t.Errorf("%s allows (-want +got):\n%s", has, diff)
		}
	}
	if farm.Allows(nil, farm.ScopeRead) {
		t.Error("no scope allows reading")
	}
}

func TestValidTenant(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"a": true, "team-blue_2.x": true, strings.Repeat("a", farm.MaxTenantBytes-1): true, strings.Repeat("a", farm.MaxTenantBytes): true,
		"": false, strings.Repeat("a", farm.MaxTenantBytes+1): false, "a b": false, "a/b": false, "{a}": false, "a:b": false, "bläu": false,
		".": false, "..": false, "...": false, ".a": true, "a..b": true, "a\nb": false, "a\x00": false, "*": false, "a\u200bb": false,
	} {
		if got := farm.ValidTenant(name); got != want {
			t.Errorf("ValidTenant(%q) = %t", name, got)
		}
	}
}

func TestParseScopes(t *testing.T) {
	t.Parallel()
	got, err := farm.ParseScopes([]string{"read", "admin", "read"})
	if diff := cmp.Diff([]farm.Scope{farm.ScopeRead, farm.ScopeAdmin}, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for _, wrong := range []string{"", "root", "READ", strings.Repeat("x", 1000)} {
		if _, err := farm.ParseScopes([]string{"read", wrong}); farm.CodeOf(err) != farm.CodeInvalid || len(err.Error()) > 200 {
			t.Errorf("%.20q: %v", wrong, err)
		}
	}
}

func TestKeyExpires(t *testing.T) {
	t.Parallel()
	at := time.Unix(1000, 0)
	for now, want := range map[time.Time]bool{at.Add(-time.Nanosecond): false, at: true, at.Add(time.Nanosecond): true} {
		if got := (farm.Key{ExpiresAt: at}).Expired(now); got != want {
			t.Errorf("at %v: %t", now, got)
		}
	}
	if (farm.Key{}).Expired(at) {
		t.Error("a key without an end has expired")
	}
}

package farm_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
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
		testbed.Diff(t, fmt.Sprintf("%s allows", has), want[has], got)
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
		testbed.Diff(t, fmt.Sprintf("ValidTenant(%q)", name), want, farm.ValidTenant(name))
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
		testbed.Diff(t, fmt.Sprintf("at %v", now), want, (farm.Key{ExpiresAt: at}).Expired(now))
	}
	if (farm.Key{}).Expired(at) {
		t.Error("a key without an end has expired")
	}
}

func TestQuotasByName(t *testing.T) {
	t.Parallel()
	defaults := farm.DefaultQuotas()
	for i, name := range farm.QuotaNames() {
		if got := defaults.Get(name); got != farm.NoQuota && name != farm.QuotaQueued {
			t.Errorf("%s is %v by default: a farm of one tenant needs no quotas", name, got)
		}
		q := farm.DefaultQuotas()
		q.Set(name, float64(i+5))
		for _, other := range farm.QuotaNames() {
			testbed.Diff(t, fmt.Sprintf("after %s was set, %s", name, other), map[bool]float64{true: float64(i + 5), false: defaults.Get(other)}[other == name], q.Get(other))
		}
	}
	if err := defaults.Validate(); err != nil {
		t.Errorf("default quotas: %v", err)
	}
}

func TestCheckQuota(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  farm.QuotaName
		value float64
		ok    bool
	}{
		{farm.QuotaSandboxes, -1, true},
		{farm.QuotaSandboxes, 0, true},
		{farm.QuotaSandboxes, farm.MaxQuota, true},
		{farm.QuotaSandboxes, farm.MaxQuota + 1, false},
		{farm.QuotaSandboxes, -2, false},
		{farm.QuotaSandboxes, 1.5, false},
		{farm.QuotaCPUs, 1.5, true},
		{farm.QuotaCPUs, -0.5, false},
		{farm.QuotaCPUs, math.NaN(), false},
		{farm.QuotaCPUs, math.Inf(1), false},
		{"max_cats", 1, false},
	} {
		err := farm.CheckQuota(c.name, c.value)
		if (err == nil) != c.ok || err != nil && farm.CodeOf(err) != farm.CodeInvalid {
			t.Errorf("CheckQuota(%s, %v) = %v", c.name, c.value, err)
		}
	}
}

func TestQuotaErrorSaysWhatToDo(t *testing.T) {
	t.Parallel()
	for _, name := range farm.QuotaNames() {
		err := farm.QuotaError(farm.QuotaUse{Name: name, Limit: 2.5, Used: 2}, 1)
		if err.Code != farm.CodeExhausted || err.Quota == nil || !strings.Contains(err.Message, string(name)) || !strings.Contains(err.Message, "2.5") ||
			name != farm.QuotaRunning && strings.Contains(err.Message, ". ,") { // max_running refuses nothing
			t.Errorf("%+v", err)
		}
	}
}

// A request that alone needs more than a quota allows can never succeed.
func TestQuotaErrorSaysThatNoRetryCanSucceed(t *testing.T) {
	t.Parallel()
	const full = "allows 1024 MiB: 1024 MiB are used, and this request needs %g MiB more. Close a sandbox, ask for less memory, or ask the farm's operator to raise it."
	for more, want := range map[float64]string{
		1023: fmt.Sprintf(full, 1023.0),
		1024: fmt.Sprintf(full, 1024.0),
		1025: "allows 1024 MiB: this request alone needs 1025 MiB, so it can never succeed. Ask for less memory, or ask the farm's operator to raise it.",
	} {
		err := farm.QuotaError(farm.QuotaUse{Name: farm.QuotaMemoryMB, Limit: 1024, Used: 1024}, more)
		if !strings.HasSuffix(err.Message, want) || err.Quota.Never != (more > 1024) {
			t.Errorf("%g MiB more: never %t: %s", more, err.Quota.Never, err.Message)
		}
	}
	none := farm.QuotaError(farm.QuotaUse{Name: farm.QuotaSandboxes}, 1)
	if !none.Quota.Never || !strings.HasSuffix(none.Message, "allows 0: this request alone needs 1, so it can never succeed. Ask the farm's operator to raise it.") {
		t.Errorf("a quota of 0: %+v", none)
	}
}

// A request may have several secrets.

package farmd

import (
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/internal/farm"
)

func TestDoctorNamesQuotasWithoutABound(t *testing.T) {
	t.Parallel()
	s := defaultSettings()
	if found := doctorQuotas(s); len(found) != 0 {
		t.Errorf("without keys: %+v", found)
	}
	s.API.RequireKeys = true
	const all = "max_sandboxes, max_memory_mb, max_stored_mb, requests_per_minute, max_connections"
	for _, keys := range [][]api.KeyConfig{nil, {{Tenant: "acme"}}} {
		s.API.Keys = keys
		if found := doctorQuotas(s); len(found) != 1 || found[0].Status != StatusNote || !strings.HasSuffix(found[0].Found, ": "+all) || !strings.Contains(found[0].Advice, "max_queued is 100000") {
			t.Errorf("without quotas: %+v", found)
		}
	}
	for _, name := range strings.Split(all, ", ") {
		s.Limits.Quotas.Set(farm.QuotaName(name), 0) // none at all is a bound
	}
	if found := doctorQuotas(s); len(found) != 1 || found[0].Status != StatusOK || !strings.Contains(found[0].Found, "max_queued is 100000") {
		t.Errorf("with quotas: %+v", found)
	}
	s.Limits.Quotas.MaxStoredMB = farm.NoQuota
	if found := doctorQuotas(s); !strings.HasSuffix(found[0].Found, ": max_stored_mb") {
		t.Errorf("with all but one: %+v", found)
	}
}

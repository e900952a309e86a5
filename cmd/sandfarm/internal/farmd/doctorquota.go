package farmd

import (
	"fmt"
	"strings"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// doctorQuotas checks whether a tenant without quotas of its own has bounds. It says nothing of a farm without keys in its settings,
// which may have one tenant.
func doctorQuotas(s *Settings) []Finding {
	if len(s.API.Keys) == 0 && !s.API.RequireKeys {
		return nil
	}
	quotas := s.Limits.TenantQuotas()
	queued := fmt.Sprintf("%s is %d without a value of the tenant's own (sandfarm tenant set)", farm.QuotaQueued, quotas.MaxQueued) // it is no setting
	var unbounded []string
	for _, name := range farm.QuotaNames() {
		switch name {
		case farm.QuotaCPUs, farm.QuotaGPUs, farm.QuotaRunning: // bounded by those of sandboxes and memory, by nodes, or by worker.slots
		default:
			if quotas.Get(name) == farm.NoQuota {
				unbounded = append(unbounded, string(name))
			}
		}
	}
	if len(unbounded) == 0 {
		return []Finding{{What: "quotas", Status: StatusOK, Found: "tenants without quotas of their own have bounds; " + queued}}
	}
	return []Finding{{
		What: "quotas", Status: StatusNote, Found: "no bound for tenants without quotas of their own: " + strings.Join(unbounded, ", "),
		Advice: "Set quotas.*, or those of each tenant (sandfarm tenant set), unless all tenants trust each other: one can fill every node. " + queued + ".",
	}}
}

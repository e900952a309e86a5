package store

import (
	"context"
	"strings"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// The lists beside the quotas in the hash of a tenant's own settings.
const (
	runtimesField = "runtimes"    // names with commas between them
	hostsField    = "allow_hosts" // rules with a line for each; empty: none
)

// TenantLists are the lists among a tenant's own settings.
type TenantLists struct {
	Runtimes []string // OCI runtimes that its sandboxes may have, the default first; none: those of the farm
	Hosts    TenantHosts
}

// TenantHosts bound what the sandboxes of a tenant may reach, beside the farm's own bound.
type TenantHosts struct {
	Farm  bool // there is no bound but the farm's; Rules are empty
	Rules []farm.HostRule
}

// Covers reports whether a rule of a sandbox is within the bound.
func (h TenantHosts) Covers(r farm.HostRule) bool { return h.Farm || r.Covered(h.Rules) }

// Texts are the rules in their normal form.
func (h TenantHosts) Texts() []string {
	texts := make([]string, len(h.Rules))
	for i, r := range h.Rules {
		texts[i] = r.String()
	}
	return texts
}

func (h TenantHosts) text() (string, error) {
	if len(h.Rules) > farm.MaxTenantHosts {
		return "", farm.Invalidf("there are %d rules; at most %d are allowed", len(h.Rules), farm.MaxTenantHosts)
	}
	return strings.Join(h.Texts(), "\n"), nil
}

// TenantLists reads the lists among a tenant's own settings. A rule that this release cannot read allows nothing.
func (s *Store) TenantLists(ctx context.Context, tenant string) (TenantLists, error) {
	found, err := s.rdb.HMGet(ctx, s.Index(tenant, IndexQuotas), runtimesField, hostsField).Result()
	if err != nil {
		return TenantLists{}, wrap("read lists of tenant", err)
	}
	var l TenantLists
	if text, ok := found[0].(string); ok {
		l.Runtimes = strings.Split(text, ",")
	}
	text, own := found[1].(string)
	l.Hosts.Farm = !own
	for line := range strings.Lines(text) {
		if r, err := farm.ParseHostRule(strings.TrimSuffix(line, "\n")); err == nil {
			l.Hosts.Rules = append(l.Hosts.Rules, r)
		}
	}
	return l, nil
}

package service

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/sandfarm/sandfarm/api/strict"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// hosts checks the rules of a sandbox's allow_hosts and returns them in their normal form: each must be within what the operator allows to all
// callers and to this tenant.
func (s *Service) hosts(ctx context.Context, p *problems, tenant string, given []string) []string {
	if len(given) > s.limits.MaxAllowHosts {
		p.addf("/allow_hosts", "allow_hosts has %d rules; at most %d are allowed", len(given), s.limits.MaxAllowHosts)
		return nil
	}
	rules := parseHosts(p, "/allow_hosts", given)
	if len(rules) == 0 {
		return []string{}
	}
	own, limited, err := s.tenantHosts(ctx, tenant)
	if err != nil {
		p.check("/allow_hosts", err)
		return nil
	}
	out := []string{}
	for i, r := range rules {
		if r == (farm.HostRule{}) {
			continue // reported
		}
		pointer := strict.Pointer("/allow_hosts", strconv.Itoa(i))
		switch {
		case r.Any():
			p.addf(pointer, "the rule %q is for operators: name hosts, such as api.example.com or *.example.com", r)
		case !covered(s.options.Allow, r):
			p.addf(pointer, "the rule %q is not within what this farm allows: %s", r, ceiling(s.options.Allow))
		case limited && !covered(own, r):
			p.addf(pointer, "the rule %q is not within what your tenant is allowed: %s", r, ceiling(own))
		case !slices.Contains(out, r.String()):
			out = append(out, r.String())
		}
	}
	return out
}

// parseHosts parses rules. One that is not valid is reported and zero.
func parseHosts(p *problems, pointer string, given []string) []farm.HostRule {
	rules := make([]farm.HostRule, len(given))
	for i, text := range given {
		r, err := farm.ParseHostRule(text)
		p.check(strict.Pointer(pointer, strconv.Itoa(i)), err)
		rules[i] = r
	}
	return rules
}

// covered reports whether one of these rules allows everything that r allows.
func covered(by []farm.HostRule, r farm.HostRule) bool {
	return slices.ContainsFunc(by, func(a farm.HostRule) bool { return a.Covers(r) })
}

// ceilingShown is how many rules of a ceiling an error names.
const ceilingShown = 10

// ceiling names the rules that bound others.
func ceiling(rules []farm.HostRule) string {
	if len(rules) == 0 {
		return "no hosts"
	}
	names := make([]string, min(len(rules), ceilingShown))
	for i := range names {
		names[i] = rules[i].String()
	}
	text := strings.Join(names, ", ")
	if more := len(rules) - len(names); more > 0 {
		text += " and " + strconv.Itoa(more) + " more"
	}
	return text
}

// EgressPageMax and EgressPageDefault are the sizes of a page of an egress log.
const (
	EgressPageMax     = 1000
	EgressPageDefault = 100
)

// Egress reads the log of a sandbox's connections behind an entry, the oldest first.
func (s *Service) Egress(ctx context.Context, tenant, id, after string, limit int) (wire.List[wire.EgressEntry], error) {
	if _, err := s.sandbox(ctx, tenant, id); err != nil {
		return wire.List[wire.EgressEntry]{}, err
	}
	entries, more, err := s.Store.Egress(ctx, farm.Ref{Tenant: tenant, ID: id}, after, limit)
	if err != nil {
		return wire.List[wire.EgressEntry]{}, err
	}
	list := wire.List[wire.EgressEntry]{Items: make([]wire.EgressEntry, len(entries))}
	for i, e := range entries {
		list.Items[i] = wire.EgressEntry(e)
	}
	if more {
		list.NextCursor = wire.Cursor(entries[len(entries)-1].ID)
	}
	return list, nil
}

// tenantHosts are the rules that bound those of a tenant; limited is false if there are none.
func (s *Service) tenantHosts(ctx context.Context, tenant string) (rules []farm.HostRule, limited bool, err error) {
	return nil, false, nil
}

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

// hosts checks the rules of a sandbox's allow_hosts and returns them in their normal form: each must be within what the operator allows, to the
// farm and to the tenant.
func (s *Service) hosts(ctx context.Context, p *problems, tenant string, given []string) []string {
	if len(given) > s.limits.MaxAllowHosts {
		p.addf("/allow_hosts", "allow_hosts has %d rules; at most %d are allowed", len(given), s.limits.MaxAllowHosts)
		return nil
	}
	lists, err := s.lists.of(ctx, s, tenant)
	if err != nil {
		p.check("/allow_hosts", err)
		return nil
	}
	out := []string{}
	for i, text := range given {
		pointer := strict.Pointer("/allow_hosts", strconv.Itoa(i))
		r, err := farm.ParseHostRule(text)
		switch {
		case err != nil:
			p.check(pointer, err)
		case r.Any():
			p.addf(pointer, "the rule %q is for operators: name hosts, such as api.example.com or *.example.com", r)
		case !r.Covered(s.options.Allow):
			p.addf(pointer, "the rule %q is not within what this farm allows: %s", r, ceiling(s.options.Allow))
		case !lists.Hosts.Covers(r):
			p.addf(pointer, "the rule %q is not within what your tenant may reach: %s", r, ceiling(lists.Hosts.Rules))
		case !slices.Contains(out, r.String()):
			out = append(out, r.String())
		}
	}
	return out
}

// ceilingShown is how many rules of a ceiling an error names.
const ceilingShown = 10

// ceiling names the rules that bound others.
func ceiling(rules []farm.HostRule) string {
	if len(rules) == 0 {
		return "no host"
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
		e.Secrets = emptyIfNil(e.Secrets)
		list.Items[i] = wire.EgressEntry(e)
	}
	if more {
		list.NextCursor = wire.Cursor(entries[len(entries)-1].ID)
	}
	return list, nil
}

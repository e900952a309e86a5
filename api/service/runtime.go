package service

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// runtime is the OCI runtime that a new sandbox must have: that of the request, or else the default of its tenant. Empty leaves it to the
// node.
func (s *Service) runtime(ctx context.Context, p *problems, tenant string, given *string) string {
	lists, err := s.lists.of(ctx, s, tenant)
	if err != nil {
		p.check("/runtime", err)
		return ""
	}
	own := lists.Runtimes
	var name string
	switch {
	case given != nil:
		name = *given
	case len(own) > 0:
		name = own[0]
	default:
		return ""
	}
	if err := farm.CheckRuntime(name); err != nil {
		p.addf("/runtime", "runtime: %s", farm.MessageOf(err))
		return ""
	}
	if len(own) > 0 && !slices.Contains(own, name) {
		p.addf("/runtime", "runtime %s is not allowed for your tenant: it may have %s", name, strings.Join(own, ", "))
		return name
	}
	what := "runtime " + name
	if given == nil {
		what += ", the default of your tenant,"
	}
	p.check("/runtime", s.checkRuntime(ctx, name, what))
	return name
}

// checkRuntime refuses a runtime that no live worker offers: its sandbox would wait forever. If no worker is known, it may wait. what names
// the runtime in the error.
func (s *Service) checkRuntime(ctx context.Context, name, what string) error {
	var offered []string
	for _, fresh := range []bool{false, true} {
		nodes, err := s.readNodes(ctx, fresh)
		switch {
		case err != nil:
			return err
		case len(nodes.runtimes) == 0:
			return nil
		}
		offered = nil
		for _, list := range nodes.runtimes {
			offered = append(offered, list...)
		}
		if slices.Contains(offered, name) {
			return nil
		}
	}
	slices.Sort(offered)
	return farm.Invalidf("%s is not offered; there is %s", what, strings.Join(slices.Compact(offered), ", "))
}

// runtimeText names a runtime in a list of what a sandbox needs; "" is nothing.
func runtimeText(name string) string {
	if name == "" {
		return ""
	}
	return fmt.Sprintf(", runtime %s", name)
}

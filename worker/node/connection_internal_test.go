package node

import (
	"net/http"
	"testing"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Connections of a sandbox to the package indexes were bounded, and not charged to its tenant.
func TestConnectionsToTheIndexesAreCharged(t *testing.T) {
	t.Parallel()
	var tenants []string
	n := &Node{deps: Deps{Index: http.NotFoundHandler(), Admit: func(tenant string) (func(), bool) {
		tenants = append(tenants, tenant)
		return func() {}, false
	}}}
	o, end := n.exit(t.Context(), &farm.Sandbox{Tenant: "acme", Spec: farm.SandboxSpec{Network: farm.NetworkPackages}})
	defer end()
	if _, ok := o.Admit(); ok || len(tenants) != 1 || tenants[0] != "acme" {
		t.Errorf("admitted: %v; charged: %q", ok, tenants)
	}
}

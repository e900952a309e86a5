//go:build integration

package mcp_test

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/sandfarm/sandfarm/internal/testbed"
)

// extensions are scenarios that revision 2026-07-28 does not require: the runner runs them and does not score them.
// Of the others, tasks-status-notifications is a stub that skips itself, and sep-2640-skills is an extension that is not
// served here.
func extensions() []string {
	return []string{
		"tasks-lifecycle", "tasks-capability-negotiation", "tasks-wire-fields", "tasks-request-state-removal", "tasks-mrtr-input",
		"tasks-request-headers", "tasks-dispatch-and-envelope", "tasks-required-task-error", "tasks-mrtr-composition",
		"json-schema-2020-12", "http-header-validation", "http-custom-header-server-validation",
	}
}

// TestScenariosOfARevision serves the fixtures of the runner's scenarios on the transport, guards and extensions of the farm's tools.
func TestScenariosOfARevision(t *testing.T) {
	t.Parallel()
	for revision, beyond := range map[string][]string{"2025-11-25": nil, "2026-07-28": extensions()} {
		t.Run(revision, func(t *testing.T) {
			t.Parallel()
			required := testbed.MCPRequired(t, revision)
			baseline := filepath.Join("testdata", "conformance-"+revision+".yaml")
			cannot := testbed.MCPListed(t, baseline)
			for _, name := range cannot {
				if !slices.Contains(required, name) {
					t.Errorf("the baseline lists %s, which the revision does not require", name)
				}
			}
			// The runner itself fails when a scenario of the baseline passes.
			scenarios, out := testbed.MCPScenarios(t, "--url", serveFixture(t), "--requirements", revision, "--expected-failures", baseline)
			if out.Code != 0 {
				t.Errorf("exit code %d\n%s%s", out.Code, out.Stdout, out.Stderr)
			}
			testbed.MCPJudge(t, scenarios, append(testbed.MCPWithout(required, cannot), beyond...))
		})
	}
}

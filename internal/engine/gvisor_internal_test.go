package engine

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/docker/docker/api/types/container"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// A sandbox that names no runtime has the engine's default, by name and with the profile for it, and a Checker allows it.
func TestTheEnginesDefaultRuntimeIsNamed(t *testing.T) {
	t.Parallel()
	for name, limited := range map[string]bool{"runc": false, "runsc": true} {
		e, last := recorder(t)
		e.standard = name
		if _, err := e.Create(t.Context(), Spec{SandboxID: farm.NewID(farm.SandboxPrefix), Image: "python", UID: 70000, AgentVolume: "farm-agent-1", AgentMount: fillMount, Command: []string{"/sandfarm/agent"}, Tenant: "t", Node: "n"}); err != nil {
			t.Fatal(err)
		}
		var got container.CreateRequest
		if err := json.Unmarshal(last().body, &got); err != nil {
			t.Fatal(err)
		}
		has := slices.ContainsFunc(got.HostConfig.Ulimits, func(l *container.Ulimit) bool { return l.Name == nproc })
		if got.HostConfig.Runtime != name || has != limited || (len(got.HostConfig.Sysctls) == 0) != limited {
			t.Errorf("default %s: runtime %q, a limit on processes %t, sysctls %v", name, got.HostConfig.Runtime, has, got.HostConfig.Sysctls)
		}
		if _, err := e.NewChecker(Rules{}).Create(t.Context(), last().name, last().body); err != nil {
			t.Errorf("default %s: %v", name, err)
		}
	}
}

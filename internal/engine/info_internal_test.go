package engine

import (
	"slices"
	"testing"

	"github.com/docker/docker/api/types/system"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// An engine that cannot limit one of these must not be used.
func TestEngineWithoutLimits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		info system.Info
		want []string
	}{
		{system.Info{MemoryLimit: true, PidsLimit: true, CPUCfsQuota: true}, nil},
		{system.Info{PidsLimit: true, CPUCfsQuota: true}, []string{"memory"}},
		{system.Info{MemoryLimit: true, CPUCfsQuota: true}, []string{"processes"}},
		{system.Info{MemoryLimit: true, PidsLimit: true}, []string{"cores"}},
		{system.Info{}, []string{"memory", "processes", "cores"}},
	} {
		if got := missingLimits(c.info); !slices.Equal(got, c.want) {
			t.Errorf("%+v: %v, want %v", c.info, got, c.want)
		}
	}
}

// The profile of a sandbox goes by the name of its runtime, so no name may hide gVisor.
func TestARuntimeIsNamedAfterWhatItIs(t *testing.T) {
	t.Parallel()
	registered := map[string]system.RuntimeWithStatus{
		"runc": {Runtime: system.Runtime{Path: "runc"}}, "gvisor": {Runtime: system.Runtime{Path: "/opt/runsc/runsc"}},
		"runsc": {Runtime: system.Runtime{Path: "/usr/local/bin/runsc"}}, "secure": {Runtime: system.Runtime{Path: "/usr/local/bin/runsc"}},
		"shim": {Runtime: system.Runtime{Type: "io.containerd.runsc.v1"}}, "crun": {Runtime: system.Runtime{Path: "/opt/runsc/crun"}},
	}
	for name, ok := range map[string]bool{"runc": true, "runsc": true, "gvisor": true, "crun": true, "missing": true, "secure": false, "shim": false} {
		if err := checkNames(registered, []string{"runc", name}); (err == nil) != ok || err != nil && farm.CodeOf(err) != farm.CodeConflict {
			t.Errorf("%s: %v", name, err)
		}
	}
}

package farm_test

import (
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/farm"
)

func TestOwnKernel(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{"": false, "runc": false, "crun": false, "nvidia": false, "runsc": true, "runsc-kvm": true, "gvisor": true, "kata": true, "io.containerd.kata.v2": true} {
		if got := farm.OwnKernel(name); got != want {
			t.Errorf("%q: %v", name, got)
		}
		if got := farm.GVisor(name); got != (want && !strings.Contains(name, "kata")) {
			t.Errorf("%q is gVisor: %v", name, got)
		}
	}
}

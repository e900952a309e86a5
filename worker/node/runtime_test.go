package node

import (
	"slices"
	"testing"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// The runtime of a sandbox is the one that it asks for, or else that of its image, or else the node's. Only a runtime that the node has may be
// asked for.
func TestRuntimeOfASandbox(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	n.deps.ImageRuntimes = map[string]string{"node": "runsc"}
	n.UseRuntimes(runtimesOf("runc", []string{"runsc", "runc", "kata", "runsc"})...)
	if got := n.Runtimes(); !slices.Equal(got, []string{"runc", "runsc", "kata"}) {
		t.Errorf("runtimes %v", got)
	}
	for _, c := range []struct {
		spec            farm.SandboxSpec
		runtime, engine string // of the sandbox, and as it is asked of the engine
		offered         bool
	}{
		{farm.SandboxSpec{Image: "python"}, "runc", "", true},
		{farm.SandboxSpec{Image: "python", Runtime: "runc"}, "runc", "runc", true},
		{farm.SandboxSpec{Image: "python", Runtime: "kata"}, "kata", "kata", true},
		{farm.SandboxSpec{Image: "node"}, "runsc", "runsc", true},
		{farm.SandboxSpec{Image: "node", Runtime: "runc"}, "runc", "runc", true},
		{farm.SandboxSpec{Image: "python", Runtime: "other"}, "other", "other", false},
	} {
		got := n.ContainerSpec(&farm.Sandbox{ID: "sbx_1", Spec: c.spec}, farm.Image{Ref: "image:1"})
		if n.Runtime(c.spec) != c.runtime || got.Runtime != c.engine || n.Offers(c.spec) != c.offered {
			t.Errorf("%+v: runtime %q, container %q, offered %v; want %+v", c.spec, n.Runtime(c.spec), got.Runtime, n.Offers(c.spec), c)
		}
	}
}

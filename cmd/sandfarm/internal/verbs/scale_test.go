package verbs_test

import (
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/api/wire"
)

func TestScaleVerb(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	f.Routes["GET /v1/scale"] = f.gives(200, wire.Items[wire.NodeNeed]{Items: []wire.NodeNeed{
		{Kind: "cpu", Nodes: 2, Wanted: 5, Waiting: 9, OldestSeconds: 61, Capacity: wire.Room{MemoryMB: 4096, CPUs: 8}, Promised: wire.Room{MemoryMB: 2048, CPUs: 1}},
		{Kind: "gpu", Model: "a100", Nodes: 3, Wanted: 1, IdleNodes: 2},
	}})
	got := f.sandfarm(t.Context(), "", "scale")
	if got.code != 0 {
		t.Fatalf("scale: %+v", got)
	}
	lines := strings.Split(strings.TrimSpace(got.out), "\n")
	for i, want := range []string{
		"KIND MODEL NODES WANTED IDLE DRAINING FAILING WAITING OLDEST UNFIT MEMORY CORES", "cpu - 2 5 0 0 0 9 1m 0 2.0/4.0 GiB 1.0/8.0", "gpu a100 3 1 2 0 0 0 - 0 - -",
	} {
		if i >= len(lines) || strings.Join(strings.Fields(lines[i]), " ") != want {
			t.Errorf("line %d of\n%s\nis not %q", i, got.out, want)
		}
	}
	if got := f.sandfarm(t.Context(), "", "scale", "--json"); got.code != 0 || !strings.Contains(got.out, `"wanted": 5`) && !strings.Contains(got.out, `"wanted":5`) {
		t.Errorf("scale --json: %+v", got)
	}
	if got := f.sandfarm(t.Context(), "", "scale", "more"); got.code != 2 {
		t.Errorf("scale more: %+v, want a usage error", got)
	}
}

//go:build integration

package engine_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/engine/enginetest"
)

// The machine's own engine has no hook; an engine with a hook gets requests for exactly the devices of each container. gVisor has none.
func TestGPUs(t *testing.T) {
	t.Parallel()
	if s, err := setup(t).GPUSupport(t.Context()); err != nil || s.Driver != "" {
		t.Errorf("an engine without a hook: %+v, %v", s, err)
	}
	gpus := enginetest.NewGPUs(t)
	daemon := enginetest.New(t, enginetest.Options{Path: []string{gpus.Dir}})
	b := setupOn(t, daemon.Host)
	support, err := b.GPUSupport(t.Context())
	if err != nil || support.Driver != engine.DriverNvidia {
		t.Fatalf("an engine with a hook: %+v, %v", support, err)
	}
	for _, h := range gpus.Seen(t) {
		if len(h.Devices) != 1 || h.Devices[0] != "void" {
			t.Errorf("the driver probe requested devices: %+v", h)
		}
	}
	looked := len(gpus.Seen(t))
	start := func(name string, devices ...string) string {
		s := b.spec(t, "wait")
		s.Runtime = "runc"
		s.SandboxID, s.GPUs, s.Env = name, devices, map[string]string{"NVIDIA_VISIBLE_DEVICES": "all"}
		return b.start(t, s)
	}
	two, one := start("sbx_two", "3", "GPU-5"), start("sbx_one", "0")
	start("sbx_none")
	want := []enginetest.Hooked{{Container: two, Devices: []string{"3", "GPU-5"}}, {Container: one, Devices: []string{"0"}}}
	got := gpus.Seen(t)[looked:]
	for i := range got {
		got[i].At = time.Time{}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("devices that the containers had (-want +got):\n%s", diff)
	}
	list, err := b.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	has := map[string][]string{}
	for _, c := range list {
		has[c.SandboxID] = c.GPUs()
	}
	if diff := cmp.Diff(map[string][]string{"sbx_two": {"3", "GPU-5"}, "sbx_one": {"0"}, "sbx_none": nil}, has); diff != "" {
		t.Errorf("devices on the labels (-want +got):\n%s", diff)
	}
}

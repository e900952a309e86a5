//go:build integration

package engine_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/engine/enginetest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// cgroupsOf returns the directories of a container's cgroup below that of all sandboxes.
func cgroupsOf(t *testing.T, id string) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{"/sys/fs/cgroup/sandboxes*/*" + id + "*", "/sys/fs/cgroup/memory/sandboxes*/*" + id + "*"} {
		dirs, err := filepath.Glob(pattern)
		testbed.Must(t, err)
		found = append(found, dirs...)
	}
	return found
}

// When the sandboxes together reach their limit, the kernel ends one of them, although each is below its own.
func TestSandboxesAreLimitedTogether(t *testing.T) {
	t.Parallel()
	b := setup(t)
	testbed.Must(t, b.CheckLimitSandboxes(t.Context()))
	testbed.Must(t, b.LimitSandboxes(t.Context(), 128<<20))
	idle := b.start(t, b.spec(t, "wait"))
	dirs := cgroupsOf(t, idle)
	testbed.Require(t, len(dirs) == 1, "the container's cgroups below that of all sandboxes: %q", dirs)
	if file := filepath.Join(dirs[0], "memory.kmem.tcp.limit_in_bytes"); strings.Contains(file, "/memory/") { // version 1
		text, err := os.ReadFile(file)
		testbed.Check(t, err == nil && string(text) == "67108864\n", "the sockets of a sandbox may keep %q (error %v)", text, err)
	}
	hungry := b.spec(t, "eat")
	hungry.Resources.MemoryMB = 512
	id := b.start(t, hungry)
	testbed.Until(t, "the sandbox that takes more than all may have is ended", func() bool {
		c, err := b.Inspect(t.Context(), id)
		return err == nil && !c.Running && c.ExitCode == 137
	})
	// Memory of gVisor's sandboxes is in files, which the kernel does not free by ending the process that uses most, so it ends others too.
	c, err := b.Inspect(t.Context(), idle)
	testbed.Check(t, err == nil && (c.Running || enginetest.GVisor()), "the idle sandbox: running %v, %v", c.Running, err)
	testbed.Must(t, b.LimitSandboxes(t.Context(), 1<<30)) // a node whose settings changed
	parent := filepath.Dir(dirs[0])
	testbed.Must(t, b.RemoveAll(t.Context(), true))
	_, err = os.Stat(parent)
	testbed.Check(t, os.IsNotExist(err), "the cgroup of all sandboxes is left: %v", err)
}

// The machine's own engine has no hook; an engine with a hook gets requests for exactly the devices of each container. gVisor has none.
func TestGPUs(t *testing.T) {
	t.Parallel()
	s, err := setup(t).GPUSupport(t.Context())
	testbed.Check(t, err == nil && s.Driver == "", "an engine without a hook: %+v, %v", s, err)
	gpus := enginetest.NewGPUs(t)
	daemon := enginetest.New(t, enginetest.Options{Path: []string{gpus.Dir}})
	b := setupOn(t, daemon.Host)
	support, err := b.GPUSupport(t.Context())
	testbed.Require(t, err == nil && support.Driver == engine.DriverNvidia, "an engine with a hook: %+v, %v", support, err)
	for _, h := range gpus.Seen(t) {
		testbed.Check(t, len(h.Devices) == 1 && h.Devices[0] == "void", "the driver probe requested devices: %+v", h)
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
	testbed.Diff(t, "devices that the containers had", want, got)
	list, err := b.List(t.Context())
	testbed.Must(t, err)
	has := map[string][]string{}
	for _, c := range list {
		has[c.SandboxID] = c.GPUs
	}
	testbed.Diff(t, "devices on the labels", map[string][]string{"sbx_two": {"3", "GPU-5"}, "sbx_one": {"0"}, "sbx_none": nil}, has)
}

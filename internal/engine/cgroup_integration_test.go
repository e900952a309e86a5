//go:build integration

package engine_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/engine/enginetest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// cgroupsOf returns the directories of a container's cgroup below that of all sandboxes.
func cgroupsOf(t *testing.T, id string) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{"/sys/fs/cgroup/sandboxes*/*" + id + "*", "/sys/fs/cgroup/memory/sandboxes*/*" + id + "*"} {
		dirs, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, dirs...)
	}
	return found
}

// When the sandboxes together reach their limit, the kernel ends one of them, although each is below its own.
func TestSandboxesAreLimitedTogether(t *testing.T) {
	t.Parallel()
	b := setup(t)
	if err := b.CheckLimitSandboxes(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := b.LimitSandboxes(t.Context(), 128<<20); err != nil {
		t.Fatal(err)
	}
	idle := b.start(t, b.spec(t, "wait"))
	dirs := cgroupsOf(t, idle)
	if len(dirs) != 1 {
		t.Fatalf("the container's cgroups below that of all sandboxes: %q", dirs)
	}
	if file := filepath.Join(dirs[0], "memory.kmem.tcp.limit_in_bytes"); strings.Contains(file, "/memory/") { // version 1
		if text, err := os.ReadFile(file); err != nil || string(text) != "67108864\n" {
			t.Errorf("the sockets of a sandbox may keep %q (error %v)", text, err)
		}
	}
	hungry := b.spec(t, "eat")
	hungry.Resources.MemoryMB = 512
	id := b.start(t, hungry)
	testbed.Until(t, "the sandbox that takes more than all may have is ended", func() bool {
		c, err := b.Inspect(t.Context(), id)
		return err == nil && !c.Running && c.ExitCode == 137
	})
	// Memory of gVisor's sandboxes is in files, which the kernel does not free by ending the process that uses most, so it ends others too.
	if c, err := b.Inspect(t.Context(), idle); err != nil || !c.Running && !enginetest.GVisor() {
		t.Errorf("the idle sandbox: running %v, %v", c.Running, err)
	}
	if err := b.LimitSandboxes(t.Context(), 1<<30); err != nil { // a node whose settings changed
		t.Error(err)
	}
	parent := filepath.Dir(dirs[0])
	if err := b.RemoveAll(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(parent); !os.IsNotExist(err) {
		t.Errorf("the cgroup of all sandboxes is left: %v", err)
	}
}

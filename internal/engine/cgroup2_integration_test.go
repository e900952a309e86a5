//go:build integration

package engine

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// The kernel's own cgroups of version 2, in a mount of the test's. Where the controllers are bound to version 1, they cannot be used in
// version 2 at the same time: then the error says so, and nothing is made.
func TestParentCgroupInTheKernelsVersion2(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	err := unix.Mount("none", root, "cgroup2", 0, "")
	testbed.Require(t, err == nil, "mount cgroups of version 2 (this needs root): %v", err)
	t.Cleanup(func() {
		if err := unix.Unmount(root, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	p, err := newParentCgroup(fmt.Sprintf("farm-test-%d", os.Getpid()), root, "2", "cgroupfs")
	testbed.Must(t, err)
	t.Cleanup(func() { _ = os.Remove(p.dir("")) })
	data, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
	testbed.Must(t, err)
	const memory = 64 << 20
	err = p.apply(t.Context(), memory)
	controllers := strings.Fields(string(data))
	if !slices.Contains(controllers, "memory") || !slices.Contains(controllers, "pids") {
		if farm.CodeOf(err) != farm.CodeConflict || !strings.Contains(err.Error(), "bound to version 1") {
			t.Errorf("with the controllers %q: %v", controllers, err)
		}
		_, err := os.Stat(p.dir(""))
		testbed.Check(t, os.IsNotExist(err), "a cgroup was made without limits: %v", err)
		return
	}
	testbed.Must(t, err)
	for file, want := range map[string]int64{"memory.max": memory, "pids.max": hostProcesses() * 3 / 4} {
		got, err := os.ReadFile(filepath.Join(p.dir(""), file))
		testbed.Check(t, err == nil && strings.TrimSpace(string(got)) == strconv.FormatInt(want, 10), "%s is %q (%v), want %d", file, got, err, want)
	}
	err = p.apply(t.Context(), 2*memory)
	testbed.Check(t, err == nil, "set again: %v", err)
}

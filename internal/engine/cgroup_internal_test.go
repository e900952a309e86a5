package engine

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// A folder with the kernel's files stands for the cgroups of version 2, which a host with version 1 lacks.
func TestParentCgroupOfVersion2(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	p, err := newParentCgroup("farm-a", root, "2", "cgroupfs")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, "sandboxes-farm-a")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "cgroup.controllers"), []byte("cpuset cpu io memory pids\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(root, "cgroup.subtree_control"), filepath.Join(dir, "memory.max"), filepath.Join(dir, "pids.max")} {
		if err := os.WriteFile(path, []byte("max\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, memory := range []int64{1 << 30, 2 << 30, 2 << 30} {
		if err := p.apply(t.Context(), memory); err != nil {
			t.Fatal(err)
		}
		for file, want := range map[string]string{"../cgroup.subtree_control": "+memory +pids", "memory.max": strconv.FormatInt(memory, 10), "pids.max": strconv.FormatInt(hostProcesses()*3/4, 10)} {
			if got, err := os.ReadFile(filepath.Join(dir, file)); err != nil || string(got) != want {
				t.Errorf("%s is %q (%v), want %q", file, got, err, want)
			}
		}
	}
}

func TestParentCgroupHasTheNameOfTheDriver(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ version, driver, name, dir string }{
		{"1", "cgroupfs", "/sandboxes-farm-a", "/c/memory/sandboxes-farm-a"},
		{"2", "cgroupfs", "/sandboxes-farm-a", "/c/sandboxes-farm-a"},
		{"1", "systemd", "sandboxes_farm_a.slice", "/c/memory/sandboxes_farm_a.slice"},
		{"2", "systemd", "sandboxes_farm_a.slice", "/c/sandboxes_farm_a.slice"},
	} {
		p, err := newParentCgroup("farm-a", "/c", c.version, c.driver)
		if err != nil || p.name != c.name || p.dir("memory") != c.dir {
			t.Errorf("version %s, %s: %q in %q, %v", c.version, c.driver, p.name, p.dir("memory"), err)
		}
	}
	if _, err := newParentCgroup("farm", "/c", "2", "none"); err == nil || !strings.Contains(err.Error(), "cgroupfs and systemd") {
		t.Errorf("driver none: %v", err)
	}
}

func TestLimitIsSetOnceAndChecked(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "memory.max")
	if err := setLimit(file, 1<<20); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, 0o400); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := setLimit(file, 1<<20+int64(os.Getpagesize())-1); err != nil { // the kernel rounds down to a page
		t.Error(err)
	}
	if after, err := os.Stat(file); err != nil || !after.ModTime().Equal(before.ModTime()) {
		t.Errorf("a limit that is set was written again: %v", err)
	}
	if err := setLimit("/dev/null", 1<<20); err == nil {
		t.Error("a limit that the kernel did not take is no error")
	}
}

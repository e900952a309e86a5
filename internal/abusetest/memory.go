package abusetest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/testbed"
)

// ProcessMemory is what each of API and worker may use.
const ProcessMemory = 256 << 20

// limits puts processes into memory cgroups. Where it cannot make them, the Go runtime gets the limit, and only the measured resident
// memory shows that it is kept.
type limits struct {
	dir  string // where the cgroups are; empty: there are none
	file string // of the limit
}

// newLimits finds out how memory is limited here.
func newLimits(t testing.TB) limits {
	t.Helper()
	removeOld()
	name := fmt.Sprintf("%s%d", groupPrefix, os.Getpid())
	for _, l := range []limits{
		{"/sys/fs/cgroup/memory/" + name, "memory.limit_in_bytes"},
		{"/sys/fs/cgroup/" + name, "memory.max"},
	} {
		if _, err := os.Stat(filepath.Dir(l.dir) + "/cgroup.procs"); err != nil || os.Mkdir(l.dir, 0o755) != nil { //nolint:gosec // a cgroup
			continue
		}
		_ = os.WriteFile(l.dir+"/cgroup.subtree_control", []byte("+memory"), 0) // version 2 only
		t.Cleanup(func() { _ = os.Remove(l.dir) })
		if err := l.make(t, "try"); err == nil {
			return l
		}
	}
	t.Log("memory cgroups cannot be made here: the limit is that of the Go runtime")
	return limits{}
}

// groupPrefix begins the names of the cgroups.
const groupPrefix = "sandfarm-abuse-"

// removeOld removes the cgroups of runs that were killed. Those in use cannot be removed.
func removeOld() {
	for _, pattern := range []string{"/sys/fs/cgroup/memory/", "/sys/fs/cgroup/"} {
		inner, _ := filepath.Glob(pattern + groupPrefix + "*/*/cgroup.procs")
		outer, _ := filepath.Glob(pattern + groupPrefix + "*")
		for _, file := range inner {
			_ = os.Remove(filepath.Dir(file))
		}
		for _, dir := range outer {
			_ = os.Remove(dir)
		}
	}
}

// make makes a cgroup with the limit.
func (l limits) make(t testing.TB, name string) error {
	dir := filepath.Join(l.dir, name)
	if err := os.Mkdir(dir, 0o755); err != nil { //nolint:gosec // a cgroup
		return fmt.Errorf("make cgroup: %w", err)
	}
	t.Cleanup(func() { _ = os.Remove(dir) })
	if err := os.WriteFile(filepath.Join(dir, l.file), []byte(strconv.Itoa(ProcessMemory)), 0); err != nil {
		return fmt.Errorf("limit cgroup: %w", err)
	}
	return nil
}

// command limits the memory of a component.
func (l limits) command(t testing.TB, name string, argv []string) []string {
	t.Helper()
	if l.dir == "" {
		return append([]string{"env", fmt.Sprintf("GOMEMLIMIT=%d", ProcessMemory/10*9)}, argv...)
	}
	testbed.Must(t, l.make(t, name))
	return append([]string{"sh", "-c", `echo $$ >"$0" && exec "$@"`, filepath.Join(l.dir, name, "cgroup.procs")}, argv...)
}

// Resident is the resident memory of a process.
type Resident struct{ Before, Max, After int64 }

func (r Resident) String() string {
	return fmt.Sprintf("%d/%d/%d MiB", r.Before>>20, r.Max>>20, r.After>>20)
}

// resetPeak makes the kernel forget the highest resident memory of a process.
func resetPeak(pid int) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
}

// resident reads the resident memory of a process and its highest value since resetPeak, without the pages of the program's file, which
// its cgroup is not charged for.
func resident(pid int) (now, limit int64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, fmt.Errorf("read memory of process %d: %w", pid, err)
	}
	var file int64
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ":")
		kib, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		switch name {
		case "VmRSS":
			now = kib << 10
		case "VmHWM":
			limit = kib << 10
		case "RssFile":
			file = kib << 10
		}
	}
	if now == 0 || limit == 0 {
		return 0, 0, errors.New("the process has ended")
	}
	return now - file, limit - file, nil
}

// Waits is how long the threads of a process wait for a core when they have something to do.
type Waits struct {
	Total time.Duration
	Times int64 // how often a thread got a core
}

// Mean is the wait at each wake-up.
func (w Waits) Mean() time.Duration { return w.Total / time.Duration(max(w.Times, 1)) }

// waits sums up what the kernel says of the threads of a process that run now. Zero where it keeps no such numbers.
func waits(pid int) (all Waits) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	for _, file := range files {
		text, err := os.ReadFile(file) //nolint:gosec // a file of the kernel
		fields := strings.Fields(string(text))
		if err != nil || len(fields) != 3 {
			continue // the thread has ended
		}
		nanoseconds, _ := strconv.ParseInt(fields[1], 10, 64)
		times, _ := strconv.ParseInt(fields[2], 10, 64)
		all.Total, all.Times = all.Total+time.Duration(nanoseconds), all.Times+times
	}
	return all
}

// since is what was added to an earlier sum; less than nothing, because threads have ended, is nothing.
func (w Waits) since(before Waits) Waits {
	return Waits{max(w.Total-before.Total, 0), max(w.Times-before.Times, 0)}
}

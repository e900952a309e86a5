//go:build integration

package engine_test

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/engine/enginetest"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// What hostile code can do in a real sandbox.
func TestSandboxFromInside(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := b.spec(t, "wait")
	f, uid := b.facts(t, b.start(t, s)), farm.PreferredUID(s.SandboxID)

	for _, of := range []map[string]string{f.Status, f.Init} {
		want := map[string]string{
			"Uid": fmt.Sprintf("%[1]d %[1]d %[1]d %[1]d", uid), "Gid": fmt.Sprintf("%[1]d %[1]d %[1]d %[1]d", uid), "CapEff": "0000000000000000", "CapPrm": "0000000000000000",
			"CapBnd": "0000000000000000", "CapInh": "0000000000000000", "CapAmb": "0000000000000000", "NoNewPrivs": "1", "Seccomp": "2",
		}
		if enginetest.GVisor() {
			want["Seccomp"] = "0" // the agent brings a filter of its own
		}
		for name, value := range want {
			testbed.Diff(t, fmt.Sprintf("%s of %s", name, of["Name"]), value, of[name])
		}
	}
	for name, want := range wantedCalls() {
		got, ok := f.Calls[name]
		testbed.Check(t, ok && strings.Contains(" "+strings.Join(want, " ")+" ", " "+got+" "), "%s gives %q, want one of %q", name, got, want)
	}
	readOnly := "EROFS"
	if enginetest.GVisor() {
		readOnly = "EACCES" // it looks at the owner first
	}
	writable := map[string]string{
		"/": readOnly, "/sandfarm": readOnly,
		"/workspace": "", "/tmp": "", "/home/sandbox": "", "/run/sandfarm": "", "/dev/shm": "",
	}
	testbed.Diff(t, "writable directories", writable, f.Writable)
	for dir, want := range map[string]string{"/workspace": "", "/home/sandbox": "", "/tmp": "EACCES", "/run/sandfarm": "EACCES", "/dev/shm": "EACCES"} {
		testbed.Diff(t, fmt.Sprintf("running a program of %s gives", dir), want, f.Execs[dir])
	}
	for dir, want := range map[string][2]uint64{
		"/workspace": {64 << 20, 200_000}, "/home/sandbox": {256 << 20, 100_000}, "/tmp": {64 << 20, 50_000},
		"/run/sandfarm": {64 << 20, 4096}, "/dev/shm": {64 << 20, 4096},
	} {
		options := []string{"nosuid", "nodev"}
		if enginetest.GVisor() { // it bounds bytes only, takes inodes from the sandbox's memory, and has no devices of the host
			want[1], options = f.Inodes[dir], []string{"nosuid"}
		}
		got := [2]uint64{f.Bytes[dir], f.Inodes[dir]}
		testbed.Check(t, got == want, "%s has %d bytes and inodes, want %d", dir, got, want)
		for _, option := range options {
			m := f.Mounts[dir]
			testbed.Check(t, strings.Contains(m, option), "%s is mounted %q", dir, m)
		}
	}
	m := f.Mounts["/proc/sys"]
	testbed.Check(t, strings.HasPrefix(m, "ro") || enginetest.GVisor(), "/proc/sys is mounted %q, want read-only", m) // whose settings are its own
	for path, size := range f.Masked {
		testbed.Check(t, size <= 0, "%s can be read: %d bytes", path, size)
	}
	interfaces, core := []string{"lo"}, [2]uint64{1, 1}
	if enginetest.GVisor() {
		interfaces, core = nil, [2]uint64{0, 0} // it has no /sys/class/net, and writes no core files
	}
	testbed.Diff(t, "interfaces", interfaces, f.Interfaces)
	testbed.Diff(t, "limits", map[string][2]uint64{"core": core, "nofile": {1024, 1024}}, f.Limits)
	testbed.Check(t, f.Hostname == "sandbox" && f.Cwd == farm.Workspace, "hostname %q, working directory %q", f.Hostname, f.Cwd)
	testbed.Check(t, has(f.Env, "COLOUR=blue"), "environment %v", f.Env)
}

// wantedCalls lists what calls of hostile code may give; "" is success. gVisor ignores the profile of system calls: what succeeds there reaches
// its own kernel only. The filter that the agent brings has tests of its own.
func wantedCalls() map[string][]string {
	want := map[string][]string{
		"getpid": {""}, "socket AF_INET": {""}, "socket AF_UNIX": {""},
		"io_uring_setup": {"EPERM", "ENOSYS"}, "keyctl": {"EPERM", "ENOSYS"}, "add_key": {"EPERM", "ENOSYS"},
		"request_key": {"EPERM", "ENOSYS"}, "userfaultfd": {"EPERM", "ENOSYS"}, "bpf": {"EPERM"}, "mount": {"EPERM"},
		"unshare user": {"EPERM"}, "socket AF_VSOCK": {"EPERM"}, "socket AF_ALG": {"EPERM"}, "socket netlink": {"EOPNOTSUPP", "ENOTSUP"}, "setuid 0": {"EPERM"},
		"seccomp": {"ENOSYS"}, "prctl seccomp": {"EINVAL"}, "io_setup": {"ENOSYS"}, "sync": {""}, "setrlimit core": {""}, "socket MPTCP": {"EPERM"},
		"SO_RCVBUF": {""}, "IP_ADD_MEMBERSHIP": {"EPERM"}, "IPV6_FLOWLABEL_MGR": {"EPERM"}, "TCP_MD5SIG": {"ENOPROTOOPT"},
	}
	if enginetest.GVisor() {
		maps.Copy(want, map[string][]string{
			"keyctl": {""}, "add_key": {"EACCES"}, "request_key": {"EACCES"}, "unshare user": {"EINVAL"}, "socket AF_VSOCK": {"EAFNOSUPPORT"},
			"socket AF_ALG": {"EAFNOSUPPORT"}, "socket netlink": {""}, "seccomp": {"EFAULT"}, "prctl seccomp": {"EFAULT"}, "io_setup": {"EINVAL"},
			"socket MPTCP": {"EINVAL"}, "IP_ADD_MEMBERSHIP": {"EINVAL"}, "IPV6_FLOWLABEL_MGR": {""}, "TCP_MD5SIG": {""},
		})
	}
	return want
}

func TestRunningNeedsEveryLabel(t *testing.T) {
	t.Parallel()
	e := setup(t)
	spec := e.spec(t, "wait")
	e.start(t, spec)
	still := e.spec(t, "wait")
	_, err := e.Create(t.Context(), still)
	testbed.Must(t, err)
	mine := engine.LabelSandbox + "=" + spec.SandboxID
	for name, c := range map[string]struct {
		labels []string
		want   bool
	}{
		"One":        {[]string{mine}, true},
		"Both":       {[]string{mine, engine.LabelRole + "=" + engine.RoleSandbox}, true},
		"OneWrong":   {[]string{mine, engine.LabelRole + "=" + engine.RoleHelper}, false},
		"NotStarted": {[]string{engine.LabelSandbox + "=" + still.SandboxID}, false},
		"None":       {[]string{engine.LabelSandbox + "=sbx_none"}, false},
	} {
		got, err := e.Running(t.Context(), c.labels...)
		testbed.Check(t, err == nil && got == c.want, "%s: %v, error %v; want %v", name, got, err, c.want)
	}
	_, err = e.Running(t.Context())
	testbed.Check(t, err != nil, "no labels: no error, although this matches every container")
}

// Sandboxes that choose the same uid get different ones, also when several workers create them at once, and a second create of one
// returns the container of the first.
func TestUserIDsAreUnique(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const at = 6
	specs, ids, errs := make([]farm.ContainerSpec, at), make([]string, at), make([]error, at)
	for i := range specs {
		specs[i] = b.spec(t, "wait")
		for uid := farm.PreferredUID(specs[0].SandboxID); farm.PreferredUID(specs[i].SandboxID) != uid; {
			specs[i].SandboxID = farm.NewID(farm.SandboxPrefix)
		}
	}
	var group sync.WaitGroup
	for i := range specs {
		group.Go(func() { ids[i], errs[i] = b.Create(t.Context(), specs[i]) })
	}
	group.Wait()
	seen := map[string]int{}
	for i, id := range ids {
		testbed.Must(t, errs[i])
		c, err := b.Inspect(t.Context(), id)
		testbed.Must(t, err)
		uid := c.Labels[engine.LabelUID]
		other, ok := seen[uid]
		testbed.Check(t, !ok, "sandboxes %d and %d have the uid %s", other, i, uid)
		seen[uid] = i
		n, err := strconv.Atoi(uid)
		testbed.Check(t, err == nil && n >= farm.FirstUID && n < farm.FirstUID+farm.UIDs, "uid %s", uid)
		again, err := b.Create(t.Context(), specs[i])
		testbed.Check(t, err == nil && again == id, "the second create of sandbox %d: %s, %v; want %s", i, again, err, id)
	}
	testbed.Must(t, b.Start(t.Context(), ids[0]))
	c, err := b.Inspect(t.Context(), ids[0])
	testbed.Must(t, err)
	uid := c.Labels[engine.LabelUID]
	f := b.facts(t, ids[0])
	want := fmt.Sprintf("%[1]s %[1]s %[1]s %[1]s", uid)
	testbed.Check(t, f.Status["Uid"] == want && f.Init["Gid"] == want, "it runs as %q and %q, want %s", f.Status["Uid"], f.Init["Gid"], want)
	testbed.Diff(t, "its workspace", "", f.Writable["/workspace"])
}

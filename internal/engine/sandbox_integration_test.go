//go:build integration

package engine_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

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
	weight, half := filepath.Join(filepath.Dir(dirs[0]), "cpu.weight"), "50\n"
	if file := filepath.Join(dirs[0], "memory.kmem.tcp.limit_in_bytes"); strings.Contains(file, "/memory/") { // version 1
		weight, half = filepath.Join("/sys/fs/cgroup/cpu", filepath.Base(filepath.Dir(dirs[0])), "cpu.shares"), "512\n"
		text, err := os.ReadFile(file)
		testbed.Check(t, err == nil && string(text) == "67108864\n", "the sockets of a sandbox may keep %q (error %v)", text, err)
	}
	text, err := os.ReadFile(weight)
	testbed.Check(t, err == nil && string(text) == half, "all sandboxes have the weight %q (error %v), want %q", text, err, half)
	procs, err := os.ReadFile(filepath.Join(dirs[0], "cgroup.procs"))
	testbed.Must(t, err)
	mounts, err := os.ReadFile(filepath.Join("/proc", strings.Fields(string(procs))[0], "mounts"))
	testbed.Must(t, err)
	testbed.Check(t, enginetest.GVisor() || strings.Contains(string(mounts), "devpts rw,nosuid,noexec,relatime,gid=5,mode=620,ptmxmode=666,max=256 "), "terminals are not limited: %s", mounts)
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

// runsc registers gVisor in an engine of a test.
func runsc(t *testing.T) []string {
	t.Helper()
	program := os.Getenv("SANDFARM_TEST_RUNSC")
	testbed.Require(t, program != "", "SANDFARM_TEST_RUNSC must name the program runsc")
	return []string{"--add-runtime", "runsc=" + program}
}

// A container under gVisor goes on after a checkpoint where it was, as often as one likes, also after a restart of the engine. The checkpoints
// follow each other so fast that the engine still has the one before.
func TestCheckpointKeepsMemory(t *testing.T) {
	t.Parallel()
	d := enginetest.New(t, enginetest.Options{Args: append(runsc(t), "--experimental")})
	b := setupOn(t, d.Host)
	testbed.Must(t, b.CheckCheckpoints(t.Context(), "runsc"))
	wantCode(t, "checkpoints of runc", b.CheckCheckpoints(t.Context(), "runc"), farm.CodeConflict)
	s := b.spec(t, "remember")
	s.Runtime = "runsc"
	id := b.start(t, s)
	before, err := b.Inspect(t.Context(), id)
	testbed.Must(t, err)
	recall := func(want string) {
		t.Helper()
		testbed.Until(t, "the probe answers", func() bool { return len(b.output(t, id, "facts")) > 0 })
		got := string(b.output(t, id, "recall"))
		testbed.Require(t, got == want, "the program answers %q, want %q", got, want)
	}
	wantCode(t, "resume without a checkpoint", b.Resume(t.Context(), id), farm.CodeConflict)
	recall("1")
	for _, want := range []string{"2", "3", "4", "5"} {
		testbed.Must(t, b.Checkpoint(t.Context(), id))
		c, err := b.Inspect(t.Context(), id)
		testbed.Require(t, err == nil && !c.Running, "after the checkpoint: %+v, %v", c, err)
		wantCode(t, "checkpoint of one that does not run", b.Checkpoint(t.Context(), id), farm.CodeConflict)
		if want == "5" {
			d.Kill()
			d.Start()
		}
		has, err := b.HasCheckpoint(t.Context(), id)
		testbed.Require(t, err == nil && has, "HasCheckpoint: %v, %v", has, err)
		for range 2 { // the second time it runs
			testbed.Must(t, b.Resume(t.Context(), id))
		}
		recall(want)
		left, err := filepath.Glob(filepath.Join(d.Tmp, "*checkpoint*"))
		testbed.Check(t, err == nil && len(left) == 0, "the resume leaves %v on the host, %v", left, err)
	}
	after, err := b.Inspect(t.Context(), id)
	if err != nil || after.Resources != before.Resources || after.Labels["sandfarm.sandbox"] != before.Labels["sandfarm.sandbox"] {
		t.Errorf("after the resume: %+v, %v; want %+v", after, err, before)
	}
	for range 2 {
		testbed.Must(t, b.RemoveCheckpoint(t.Context(), id))
	}
	has, err := b.HasCheckpoint(t.Context(), id)
	testbed.Check(t, err == nil && !has, "HasCheckpoint after the removal: %v, %v", has, err)
	testbed.Must(t, b.Checkpoint(t.Context(), id))
	testbed.Must(t, b.Remove(t.Context(), id))
	wantCode(t, "checkpoint of one that is gone", b.Checkpoint(t.Context(), id), farm.CodeNotFound)
	wantCode(t, "resume of one that is gone", b.Resume(t.Context(), id), farm.CodeNotFound)
}

// Without the program that removes what a resume leaves on the host no sandbox hibernates.
func TestCheckpointsOfTheBareRunsc(t *testing.T) {
	t.Parallel()
	program := filepath.Join(filepath.Dir(strings.TrimPrefix(runsc(t)[1], "runsc=")), "runsc")
	b := setupOn(t, enginetest.New(t, enginetest.Options{Args: []string{"--experimental", "--add-runtime", "runsc=" + program}}).Host)
	wantCode(t, "checkpoints", b.CheckCheckpoints(t.Context(), "runsc"), farm.CodeConflict)
}

// What the engine cannot do has a code, and the container runs on.
func TestCheckpointThatTheEngineRefuses(t *testing.T) {
	t.Parallel()
	for what, args := range map[string][]string{"not experimental": nil, "runc": {"--experimental"}} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b := setupOn(t, enginetest.New(t, enginetest.Options{Args: append(runsc(t), args...)}).Host)
			s := b.spec(t, "wait")
			if args != nil {
				s.Runtime = "runc"
			}
			wantCode(t, "checkpoints", b.CheckCheckpoints(t.Context(), s.Runtime), farm.CodeConflict)
			id := b.start(t, s)
			wantCode(t, "checkpoint", b.Checkpoint(t.Context(), id), farm.CodeConflict)
			wantCode(t, "resume", b.Resume(t.Context(), id), farm.CodeConflict)
			testbed.Must(t, b.RemoveCheckpoint(t.Context(), id))
			c, err := b.Inspect(t.Context(), id)
			testbed.Check(t, err == nil && c.Running, "afterwards: %+v, %v", c, err)
		})
	}
}

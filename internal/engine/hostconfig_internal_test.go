package engine

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/api/types/system"
	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func spec() sandboxSpec {
	return sandboxSpec{UID: 1000, ContainerSpec: farm.ContainerSpec{
		SandboxID: "sbx_1", Image: "image", Command: []string{"/sandfarm/agent", "init"}, Agent: "agent-volume",
		Resources: farm.Resources{MemoryMB: 512, CPUs: 1.5, PIDs: 100, DiskMB: 256},
	}}
}

// The floor of the hardened profile, field by field. A field that is not here must be the zero value.
func TestHostConfigIsTheFloor(t *testing.T) {
	t.Parallel()
	pids, no := int64(100), false
	want := &container.HostConfig{
		NetworkMode: "none", IpcMode: "private", CgroupnsMode: "private", CapDrop: []string{"ALL"},
		SecurityOpt:    []string{"no-new-privileges:true", "seccomp={}"},
		ReadonlyRootfs: true,
		MaskedPaths: []string{
			"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
			"/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware",
			"/sys/devices/virtual/powercap", "/sys/devices/system/cpu/cpu0/thermal_throttle",
			"/sys/devices/system/cpu/cpu1/thermal_throttle", "/proc/key-users", "/sys/devices/virtual/block", "/sys/devices/virtual/dmi", "/sys/devices/virtual/nvme-subsystem", "/sys/devices/virtual/nvme-fabrics", "/sys/hypervisor",
			"/proc/cmdline", "/proc/config.gz", "/proc/diskstats", "/proc/fs", "/proc/locks", "/proc/mdstat", "/proc/partitions", "/proc/pressure", "/proc/spl", "/proc/swaps",
			"/sys/fs/bcachefs", "/sys/fs/btrfs", "/sys/fs/ext4", "/sys/fs/f2fs", "/sys/fs/nilfs2", "/sys/fs/xfs", "/sys/kernel/irq", "/sys/devices/pci0000:00",
		},
		ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
		Tmpfs: map[string]string{
			"/workspace":    "rw,exec,nosuid,nodev,size=256m,nr_inodes=200000,mode=0755,uid=1000,gid=1000",
			"/home/sandbox": "rw,exec,nosuid,nodev,size=1024m,nr_inodes=100000,mode=0755,uid=1000,gid=1000",
			"/tmp":          "rw,noexec,nosuid,nodev,size=256m,nr_inodes=50000,mode=1777",
			"/run/sandfarm": "rw,noexec,nosuid,nodev,size=64m,nr_inodes=4096,mode=0755,uid=1000,gid=1000",
			"/dev/shm":      "rw,noexec,nosuid,nodev,size=64m,nr_inodes=4096,mode=1777",
		},
		LogConfig:     container.LogConfig{Type: "none"},
		RestartPolicy: container.RestartPolicy{Name: "no"},
		Init:          &no,
		OomScoreAdj:   700,
		Runtime:       "hardened",
		Sysctls: map[string]string{
			"net.core.somaxconn": "128", "net.ipv4.tcp_rmem": "4096 16384 6291456", "net.ipv4.tcp_max_tw_buckets": "4096",
			"net.core.tstamp_allow_data": "0",
		},
		Mounts: []mount.Mount{{
			Type: "volume", Source: "agent-volume", Target: "/sandfarm", ReadOnly: true, VolumeOptions: &mount.VolumeOptions{NoCopy: true},
		}},
		Resources: container.Resources{
			CgroupParent: "/sandboxes-farm",
			Memory:       512 << 20, MemorySwap: 512 << 20, NanoCPUs: 1_500_000_000, CPUShares: 96, PidsLimit: &pids, OomKillDisable: &no,
			Ulimits: []*container.Ulimit{{Name: "core", Soft: 1, Hard: 1}, {Name: "nofile", Soft: 1024, Hard: 1024}},
		},
	}
	got := hostConfig(spec(), hostFacts{seccomp: "{}", runtime: "hardened", cpus: 2, timestamps: true, parent: "/sandboxes-farm", devices: []string{"/sys/devices/pci0000:00"}})
	testbed.Diff(t, "host config", want, got)
}

// A runtime with a kernel of its own may have one that lacks the setting, and then would start nothing.
func TestHostConfigOfTimestamps(t *testing.T) {
	t.Parallel()
	for runtime, want := range map[string]bool{"runc": true, "crun": true, "nvidia": true, "kata": false, "runsc": false} {
		for _, known := range []bool{false, true} {
			s := spec()
			s.Runtime = runtime
			_, got := hostConfig(s, hostFacts{seccomp: "{}", timestamps: known}).Sysctls["net.core.tstamp_allow_data"]
			testbed.Check(t, got == (want && known), "%s, kernel has it: %v: set is %v", runtime, known, got)
		}
	}
	for kernel, want := range map[string]bool{
		"6.12.41+deb13-amd64": false, "6.13.0": true, "6.18.44-fc": true, "5.15.0": false, "7.0.1": true, "10.2": true, "": false, "six": false,
	} {
		testbed.Diff(t, fmt.Sprintf("%q", kernel), want, OwnTimestamps(kernel))
	}
}

// gVisor has a network stack of its own, which knows none of the host's settings, and counts processes itself: the engine counts gVisor's
// own threads.
func TestHostConfigOfGVisor(t *testing.T) {
	t.Parallel()
	for _, runtime := range []string{"runsc", "runsc-kvm", "gvisor", "io.containerd.runsc.v1"} {
		s := spec()
		s.Runtime = runtime
		hc := hostConfig(s, hostFacts{seccomp: "{}"})
		testbed.Check(t, hc.Sysctls == nil, "%s: sysctls %v", runtime, hc.Sysctls)
		for _, pids := range []int{1, 16, 256, 4096} {
			s.Resources.PIDs = pids
			hc := hostConfig(s, hostFacts{seccomp: "{}"})
			last := *hc.Ulimits[len(hc.Ulimits)-1]
			if last.Name != "nproc" || last.Soft != int64(pids) || last.Hard != int64(pids) || *hc.PidsLimit < int64(2*pids+48) || pidsOf(hc) != pids {
				t.Errorf("%s: %d processes: %+v, %d on the host, read as %d", runtime, pids, last, *hc.PidsLimit, pidsOf(hc))
			}
		}
	}
}

// What is masked of the host's devices: all but cores, memory and the loopback interface. Sandboxes with GPUs see the buses.
func TestHostDevices(t *testing.T) {
	t.Parallel()
	tree := t.TempDir()
	for _, name := range []string{"virtual", "pci0000:00", "system", "LNXSYSTM:00", "virtual/net", "virtual/nvme-subsystem", "virtual/block"} {
		testbed.Must(t, os.Mkdir(filepath.Join(tree, name), 0o700))
	}
	testbed.Must(t, os.WriteFile(filepath.Join(tree, "uevent"), nil, 0o600))
	virtual := []string{"/sys/devices/virtual/block", "/sys/devices/virtual/nvme-subsystem"}
	testbed.Diff(t, "a sandbox with a GPU", virtual, hostDevices(tree, true))
	all := append([]string{"/sys/devices/LNXSYSTM:00", "/sys/devices/pci0000:00"}, virtual...)
	testbed.Diff(t, "", all, hostDevices(tree, false))
	got := hostDevices(filepath.Join(tree, "missing"), false)
	testbed.Check(t, got == nil, "without the tree: %v", got)
	e := &Engine{}
	with := spec()
	with.GPUs = []string{"GPU-0"}
	testbed.Diff(t, "", hostDevices(deviceTree, true), e.facts(with, 1).devices)
	testbed.Diff(t, "", append(hostDevices(deviceTree, false), "/proc/driver", "/proc/bus"), e.facts(spec(), 1).devices)
	masked := maskedPaths(0, virtual)
	block := func(p string) bool { return p == virtual[0] }
	i := slices.IndexFunc(masked, block)
	testbed.Check(t, i >= 0 && slices.IndexFunc(masked[i+1:], block) < 0 && slices.Contains(masked, virtual[1]), "each once: %v", masked)
}

// No spec gives a sandbox access to the host.
func TestHostConfigNeverSharesWithTheHost(t *testing.T) {
	t.Parallel()
	for _, network := range append(farm.Networks(), "") {
		s := spec()
		s.Labels = map[string]string{"privileged": "true", "network": string(network)}
		hc := hostConfig(s, hostFacts{seccomp: "{}"})
		if hc.Privileged || len(hc.CapAdd) > 0 || hc.PublishAllPorts || len(hc.PortBindings) > 0 {
			t.Errorf("%q: privileged %v, caps %v, ports %v", network, hc.Privileged, hc.CapAdd, hc.PortBindings)
		}
		if len(hc.Binds)+len(hc.Devices)+len(hc.DeviceRequests)+len(hc.VolumesFrom)+len(hc.Links)+len(hc.ExtraHosts)+len(hc.GroupAdd) > 0 {
			t.Errorf("%q: a host resource is shared: %+v", network, hc)
		}
		for name := range hc.Sysctls {
			if !strings.HasPrefix(name, "net.") { // of its own network namespace; others are the host's, or widen what a sandbox may do
				t.Errorf("%q: sysctl %s", network, name)
			}
		}
		if hc.PidMode != "" || hc.UTSMode != "" || hc.UsernsMode != "" || hc.IpcMode.IsHost() || hc.NetworkMode.IsHost() || hc.CgroupnsMode.IsHost() {
			t.Errorf("%q: a namespace of the host is shared: %+v", network, hc)
		}
		if slices.ContainsFunc(hc.SecurityOpt, func(o string) bool { return strings.Contains(o, "unconfined") }) {
			t.Errorf("%q: security options %v", network, hc.SecurityOpt)
		}
		testbed.Check(t, hc.MaskedPaths != nil && hc.ReadonlyPaths != nil, "%q: masked paths depend on the engine's version", network)
		testbed.Check(t, hc.NetworkMode == "none", "%q: network mode %q", network, hc.NetworkMode)
		for _, m := range hc.Mounts {
			testbed.Check(t, m.Type == mount.TypeVolume && m.ReadOnly, "%q: mount %+v", network, m)
		}
	}
}

func TestResourcesDefaultsAndCeiling(t *testing.T) {
	t.Parallel()
	limits := farm.DefaultLimits()
	empty := sandboxSpec{}
	want := farm.Resources{
		MemoryMB: limits.Memory.Default, CPUs: limits.CPUs.Default, PIDs: limits.PIDs.Default, DiskMB: limits.Disk.Default,
	}
	testbed.Diff(t, "defaults", want, empty.resources(0))
	wide := sandboxSpec{ContainerSpec: farm.ContainerSpec{Resources: farm.Resources{CPUs: 64}}}
	got := wide.resources(2).CPUs
	testbed.Check(t, got == 2, "cpus over the engine's = %v, want 2", got)
}

// The weight of a sandbox is what its tenant has asked for of max_cpus, also after a change.
func TestSharesFollowCores(t *testing.T) {
	t.Parallel()
	for cpus, want := range map[float64]int64{0.03: 2, 0.05: 3, 0.4: 25, 1: 64, 2: 128, 15.9: 1017, 16: 1024, 64: 1024} {
		testbed.Diff(t, fmt.Sprint(cpus, " cores"), want, shares(cpus))
		testbed.Diff(t, fmt.Sprint("a change to ", cpus), want, updateConfig(farm.Resources{CPUs: cpus}).CPUShares)
	}
}

func TestSpecIsRefused(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*sandboxSpec){
		"Root":        func(s *sandboxSpec) { s.UID = 0 },
		"NegativeUID": func(s *sandboxSpec) { s.UID = -1 },
		"NoSandbox":   func(s *sandboxSpec) { s.SandboxID = "" },
		"NoImage":     func(s *sandboxSpec) { s.Image = "" },
		"NoCommand":   func(s *sandboxSpec) { s.Command = nil },
	} {
		s := spec()
		change(&s)
		testbed.Diff(t, fmt.Sprintf("%s: code", name), farm.CodeInvalid, farm.CodeOf(s.validate()))
	}
	s := spec()
	err := s.validate()
	testbed.Check(t, err == nil, "a good spec: %v", err)
}

// An engine that cannot limit one of these must not be used.
func TestEngineWithoutLimits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		info system.Info
		want []string
	}{
		{system.Info{MemoryLimit: true, PidsLimit: true, CPUCfsQuota: true}, nil},
		{system.Info{PidsLimit: true, CPUCfsQuota: true}, []string{"memory"}},
		{system.Info{MemoryLimit: true, CPUCfsQuota: true}, []string{"processes"}},
		{system.Info{MemoryLimit: true, PidsLimit: true}, []string{"cores"}},
		{system.Info{}, []string{"memory", "processes", "cores"}},
	} {
		got := missingLimits(c.info)
		testbed.Check(t, slices.Equal(got, c.want), "%+v: %v, want %v", c.info, got, c.want)
	}
}

// The profile of a sandbox goes by the name of its runtime, so no name may hide gVisor.
func TestARuntimeIsNamedAfterWhatItIs(t *testing.T) {
	t.Parallel()
	registered := map[string]system.RuntimeWithStatus{
		"runc": {Runtime: system.Runtime{Path: "runc"}}, "gvisor": {Runtime: system.Runtime{Path: "/opt/runsc/runsc"}},
		"runsc": {Runtime: system.Runtime{Path: "/usr/local/bin/runsc"}}, "secure": {Runtime: system.Runtime{Path: "/usr/local/bin/runsc"}},
		"shim": {Runtime: system.Runtime{Type: "io.containerd.runsc.v1"}}, "crun": {Runtime: system.Runtime{Path: "/opt/runsc/crun"}},
	}
	for name, ok := range map[string]bool{"runc": true, "runsc": true, "gvisor": true, "crun": true, "missing": true, "secure": false, "shim": false} {
		err := checkNames(registered, []string{"runc", name})
		testbed.Check(t, (err == nil) == ok && (err == nil || farm.CodeOf(err) == farm.CodeConflict), "%s: %v", name, err)
	}
}

// The default runtime is the first, and none is there twice.
func TestRuntimesOfAnEngine(t *testing.T) {
	t.Parallel()
	got := runtimesOf("runc", []string{"runsc", "runc", "kata", "runsc"})
	testbed.Check(t, slices.Equal(got, []string{"runc", "runsc", "kata"}), "runtimes %v", got)
}

// A sandbox with GPUs differs from one without only in its requested devices and shared memory.
func TestHostConfigWithGPUs(t *testing.T) {
	t.Parallel()
	with := spec()
	with.GPUs = []string{"GPU-1", "GPU-2"}
	want := hostConfig(spec(), hostFacts{seccomp: "{}"})
	want.DeviceRequests = []container.DeviceRequest{{Driver: "nvidia", DeviceIDs: []string{"GPU-1", "GPU-2"}, Capabilities: [][]string{{"gpu", "compute", "utility"}}}}
	want.Tmpfs["/dev/shm"] = strings.Replace(want.Tmpfs["/dev/shm"], "size=64m", "size=1024m", 1)
	testbed.Diff(t, "host config", want, hostConfig(with, hostFacts{seccomp: "{}"}))
	with.CDI = []string{"nvidia.com/gpu=0", "nvidia.com/gpu=1"}
	want.DeviceRequests = []container.DeviceRequest{{Driver: "cdi", DeviceIDs: with.CDI}}
	testbed.Diff(t, "host config with CDI", want, hostConfig(with, hostFacts{seccomp: "{}"}))
	with.CDI = with.CDI[:1]
	testbed.Diff(t, "fewer names than devices", farm.CodeInvalid, farm.CodeOf(with.validate()))
}

// Neither the caller's variables nor the image's give a sandbox devices.
func TestVisibleDevicesAreNotTheCallers(t *testing.T) {
	t.Parallel()
	e := &Engine{namespace: "test"}
	for name, c := range map[string]struct {
		gpus, cdi []string
		env       map[string]string
		nvidia    bool
		want      []string
	}{
		"PlainEngine":    {want: []string{}},
		"NvidiaEngine":   {nvidia: true, want: []string{"NVIDIA_VISIBLE_DEVICES=void"}},
		"CallerWantsAll": {nvidia: true, env: map[string]string{"A": "1", "NVIDIA_VISIBLE_DEVICES": "all"}, want: []string{"A=1", "NVIDIA_VISIBLE_DEVICES=void"}},
		"OwnDevices":     {gpus: []string{"2", "3"}, env: map[string]string{"NVIDIA_VISIBLE_DEVICES": "all"}, want: []string{"NVIDIA_VISIBLE_DEVICES=2,3"}},
		"OwnDevicesCDI":  {gpus: []string{"2"}, cdi: []string{"nvidia.com/gpu=2"}, env: map[string]string{"NVIDIA_VISIBLE_DEVICES": "all"}, want: []string{"NVIDIA_VISIBLE_DEVICES=void"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := spec()
			s.GPUs, s.CDI, s.Env = c.gpus, c.cdi, c.env
			config := e.containerConfig(s, c.nvidia)
			testbed.Diff(t, "environment", c.want, config.Env)
			got := fromLabels("c1", config.Labels).GPUs
			testbed.Check(t, cmp.Equal(c.gpus, got), "the label says %v", got)
		})
	}
}

func TestGPUsThatAreOffered(t *testing.T) {
	t.Parallel()
	devices, index := []farm.GPUDevice{{ID: "GPU-0"}, {ID: "GPU-1"}, {ID: "GPU-2"}}, map[string]string{"GPU-0": "0", "GPU-1": "1", "GPU-2": "2"}
	cdi := GPUSupport{Driver: DriverCDI, Names: []string{"nvidia.com/gpu=0", "nvidia.com/gpu=GPU-1"}}
	for _, c := range []struct {
		support GPUSupport
		offered []farm.GPUDevice
		named   []string // of all devices
	}{{GPUSupport{}, nil, nil}, {GPUSupport{Driver: DriverNvidia}, devices, nil}, {cdi, devices[:2], cdi.Names}} {
		e := &Engine{}
		var got []farm.GPUDevice
		got, e.cdi = c.support.offer(devices, index)
		named := e.cdiNames([]string{"GPU-0", "GPU-1", "GPU-2"})
		testbed.Check(t, cmp.Equal(got, c.offered) && slices.Equal(named, c.named), "%+v: %v with names %v", c.support, got, named)
	}
}

func TestCDIName(t *testing.T) {
	t.Parallel()
	s := GPUSupport{Driver: DriverCDI, Names: []string{"nvidia.com/gpu=0", "nvidia.com/gpu=GPU-1", "nvidia.com/gpu=all"}}
	a, b, none := s.cdiName("GPU-0", "0"), s.cdiName("GPU-1", "1"), s.cdiName("", "2")
	testbed.Check(t, a == "nvidia.com/gpu=0" && b == "nvidia.com/gpu=GPU-1" && none == "", "names %q, %q, %q", a, b, none)
}

// A sandbox that names no runtime has the engine's default, by name and with the profile for it, and a Checker allows it.
func TestTheEnginesDefaultRuntimeIsNamed(t *testing.T) {
	t.Parallel()
	for name, limited := range map[string]bool{"runc": false, "runsc": true} {
		e, last := recorder(t)
		e.standard = name
		_, err := e.createOnce(t.Context(), sandboxSpec{UID: 70000, ContainerSpec: farm.ContainerSpec{SandboxID: farm.NewID(farm.SandboxPrefix), Image: "python", Agent: "farm-agent-1", Command: []string{"/sandfarm/agent"}, Tenant: "t", Node: "n"}}, 8)
		testbed.Must(t, err)
		var got container.CreateRequest
		testbed.Must(t, json.Unmarshal(last().body, &got))
		has := slices.ContainsFunc(got.HostConfig.Ulimits, func(l *container.Ulimit) bool { return l.Name == nproc })
		if got.HostConfig.Runtime != name || has != limited || (len(got.HostConfig.Sysctls) == 0) != limited {
			t.Errorf("default %s: runtime %q, a limit on processes %t, sysctls %v", name, got.HostConfig.Runtime, has, got.HostConfig.Sysctls)
		}
		_, err = e.NewChecker(Rules{}).Create(t.Context(), last().name, last().body)
		testbed.Check(t, err == nil, "default %s: %v", name, err)
	}
}

// An image that was pushed keeps its own name.
func TestStableTag(t *testing.T) {
	t.Parallel()
	for want, tags := range map[string][]string{
		"":                       {"<none>:<none>"},
		"sandfarm/python:1":      {"sandfarm/python:latest", "registry.example.com/farm/python:2", "localhost:5000/a:1", "sandfarm/python:1"},
		"localhost:5000/a:1":     {"sandfarm/python:latest", "localhost:5000/a:1"},
		"sandfarm/python:latest": {"sandfarm/python:latest"},
	} {
		testbed.Diff(t, "tag", want, stableTag(image.Summary{RepoTags: tags}))
	}
}

// The user of a sandbox is neither one of the host nor the one that connects to agents.
func TestPreferredUID(t *testing.T) {
	t.Parallel()
	for range 1000 {
		uid := farm.PreferredUID(farm.NewID(farm.SandboxPrefix))
		testbed.Require(t, uid >= farm.FirstUID && uid < farm.FirstUID+farm.UIDs && uid != agent.DialUID, "uid %d", uid)
	}
}

func TestNextUID(t *testing.T) {
	t.Parallel()
	all := map[int]bool{}
	for uid := farm.FirstUID; uid < farm.FirstUID+farm.UIDs; uid++ {
		all[uid] = true
	}
	uid, err := farm.NextUID(farm.FirstUID, all)
	testbed.Check(t, err != nil, "uid %d although all are used", uid)
	delete(all, farm.FirstUID+7)
	for _, after := range []int{farm.FirstUID, farm.FirstUID + 6, farm.FirstUID + 7, farm.FirstUID + 8, farm.FirstUID + farm.UIDs - 1} {
		uid, err := farm.NextUID(after, all)
		testbed.Check(t, err == nil && uid == farm.FirstUID+7, "after %d: %d, %v", after, uid, err)
	}
	last, err := farm.NextUID(farm.FirstUID+farm.UIDs-1, nil)
	testbed.Check(t, err == nil && last == farm.FirstUID, "after the last comes %d, %v", last, err)
}

// A folder with the kernel's files stands for the cgroups of version 2, which a host with version 1 lacks.
func TestParentCgroupOfVersion2(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	p, err := newParentCgroup("farm-a", root, "2", "cgroupfs")
	testbed.Must(t, err)
	dir := filepath.Join(root, "sandboxes-farm-a")
	testbed.Must(t, os.Mkdir(dir, 0o700))
	testbed.Must(t, os.WriteFile(filepath.Join(root, "cgroup.controllers"), []byte("cpuset cpu io memory pids\n"), 0o600))
	for _, path := range []string{filepath.Join(root, "cgroup.subtree_control"), filepath.Join(dir, "memory.max"), filepath.Join(dir, "pids.max"), filepath.Join(dir, "cpu.weight")} {
		testbed.Must(t, os.WriteFile(path, []byte("max\n"), 0o600))
	}
	for _, memory := range []int64{1 << 30, 2 << 30, 2 << 30} {
		testbed.Must(t, p.apply(t.Context(), memory))
		for file, want := range map[string]string{"../cgroup.subtree_control": "+memory +pids", "cpu.weight": "50", "memory.max": strconv.FormatInt(memory, 10), "pids.max": strconv.FormatInt(hostProcesses()*3/4, 10)} {
			got, err := os.ReadFile(filepath.Join(dir, file))
			testbed.Check(t, err == nil && string(got) == want, "%s is %q (%v), want %q", file, got, err, want)
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
	_, err := newParentCgroup("farm", "/c", "2", "none")
	testbed.Check(t, err != nil && strings.Contains(err.Error(), "cgroupfs and systemd"), "driver none: %v", err)
}

func TestLimitIsSetOnceAndChecked(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "memory.max")
	testbed.Must(t, setLimit(file, 1<<20))
	testbed.Must(t, os.Chmod(file, 0o400))
	before, err := os.Stat(file)
	testbed.Must(t, err)
	testbed.Must(t, setLimit(file, 1<<20+int64(os.Getpagesize())-1)) // the kernel rounds down to a page
	after, err := os.Stat(file)
	testbed.Check(t, err == nil && after.ModTime().Equal(before.ModTime()), "a limit that is set was written again: %v", err)
	err = setLimit("/dev/null", 1<<20)
	testbed.Check(t, err != nil, "a limit that the kernel did not take is no error")
}

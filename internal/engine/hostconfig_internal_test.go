package engine

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"

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
			"/sys/devices/system/cpu/cpu1/thermal_throttle", "/proc/key-users", "/sys/devices/virtual/block", "/sys/devices/virtual/dmi",
			"/proc/cmdline", "/proc/config.gz", "/proc/diskstats", "/proc/fs", "/proc/locks", "/proc/partitions", "/proc/pressure", "/sys/fs/btrfs", "/sys/fs/ext4", "/sys/fs/xfs", "/sys/devices/pci0000:00",
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
		OomScoreAdj:   500,
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
			Memory:       512 << 20, MemorySwap: 512 << 20, NanoCPUs: 1_500_000_000, CPUShares: 128, PidsLimit: &pids, OomKillDisable: &no,
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

// What is masked of the host's devices: all but cores, memory and what is virtual. Sandboxes with GPUs see the buses.
func TestHostDevices(t *testing.T) {
	t.Parallel()
	tree := t.TempDir()
	for _, name := range []string{"virtual", "pci0000:00", "system", "LNXSYSTM:00"} {
		testbed.Must(t, os.Mkdir(filepath.Join(tree, name), 0o700))
	}
	testbed.Must(t, os.WriteFile(filepath.Join(tree, "uevent"), nil, 0o600))
	testbed.Diff(t, "", []string{"/sys/devices/LNXSYSTM:00", "/sys/devices/pci0000:00"}, hostDevices(tree))
	got := hostDevices(filepath.Join(tree, "missing"))
	testbed.Check(t, got == nil, "without the tree: %v", got)
	e := &Engine{}
	with := spec()
	with.GPUs = []string{"GPU-0"}
	got = e.facts(with, 1).devices
	testbed.Check(t, got == nil, "a sandbox with a GPU: %v", got)
	testbed.Diff(t, "", hostDevices(deviceTree), e.facts(spec(), 1).devices)
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
	got = wide.resources(0).CPUs
	testbed.Check(t, got == 64, "cpus on an unknown engine = %v, want 64", got)
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

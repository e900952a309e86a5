package engine

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/mount"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// sandboxSpec is what a sandbox's container is made of. The hardened profile fixes everything else.
type sandboxSpec struct {
	farm.ContainerSpec
	UID int      // user and group id of everything in it; 0 is refused
	CDI []string // names of its GPUs in CDI; nil: the nvidia driver takes their ids
}

// Mount points and sizes of the writable places. All are tmpfs, so all count against the sandbox's memory.
const (
	workInodes = 200_000 // files and directories in the workspace: 10 000 results fit many times over
	tmpInodes  = 50_000
	homeInodes = 100_000 // caches of tools are many small files
	runInodes  = 4_096
	shmMB      = 64 // Docker's default
	shmInodes  = 4_096
)

// resources returns the spec's resources with defaults for zero fields, and at most as many cores as the engine has (0: unknown).
func (s *sandboxSpec) resources(engineCPUs int) farm.Resources {
	return s.Resources.OrDefault().OnHost(float64(engineCPUs))
}

// validate checks the fields that the profile relies on.
func (s *sandboxSpec) validate() error {
	switch {
	case s.SandboxID == "":
		return farm.Invalidf("a sandbox's container needs the sandbox's id")
	case s.Image == "":
		return farm.Invalidf("a sandbox's container needs an image")
	case len(s.Command) == 0:
		return farm.Invalidf("a sandbox's container needs a command")
	case s.UID <= 0:
		return farm.Invalidf("a sandbox never runs as root: its uid is %d", s.UID)
	case len(s.CDI) > 0 && len(s.CDI) != len(s.GPUs):
		return farm.Invalidf("%d GPUs need as many CDI names, not %d", len(s.GPUs), len(s.CDI))
	case slices.ContainsFunc(s.CDI, func(name string) bool { return !strings.HasPrefix(name, cdiKind) || name == cdiKind+"all" }):
		return farm.Invalidf("%s is no name of one GPU", farm.Shorten(fmt.Sprint(s.CDI)))
	}
	return nil
}

const (
	// coreShares is a sandbox's CPU weight for each core that it has, so that a tenant's weight is what its quota max_cpus lets it ask for, in however many
	// sandboxes: with the same for each, twenty with 0.4 cores kept one with two waiting 7 to 20 times as long (Linux 6.18, two cores). Where a sandbox lies
	// beside services, which have 1024, one of the default two cores has an eighth of their weight, and none has more than they.
	coreShares, minShares, maxShares = 64, 2, 1024
	// oomScoreAdj makes the kernel end sandboxes before any program that uses less than 70 % of a host's memory, and their user code, which the agent
	// starts with 950, before the agent. Neither can go below it if the engine has CAP_SYS_RESOURCE (proc_pid_oom_score_adj(5)), as on most hosts;
	// elsewhere user code can lower it to 0.
	oomScoreAdj = 700
	openFiles   = 1024
	nproc       = "nproc" // the limit that gVisor has of processes
	// gVisorThreads is how many threads of the host gVisor may have for each of a sandbox, and gVisorOwnThreads beside them.
	gVisorThreads, gVisorOwnThreads = 4, 256
	coreBytes                       = 1 // no core file, and no program of the host that takes it (core_pattern), which 0 does not prevent
)

// hostFacts is what hostConfig needs to know about the engine.
type hostFacts struct {
	seccomp string   // profile as JSON
	runtime string   // of sandboxes that name none; empty: unknown
	cpus    int      // cores, 0: unknown
	parent  string   // cgroup above all sandboxes, empty: the engine's default
	devices []string // of the host that a sandbox does not see: paths below deviceTree, driverTree and busTree

	timestamps bool // a network namespace has a setting for timestamps of its own
}

// shares is the CPU weight of a sandbox.
func shares(cpus float64) int64 {
	return int64(max(minShares, min(cpus*coreShares, maxShares)))
}

// hostConfig is the hardened profile: a pure function of the spec and the facts. The package's tests check each field.
func hostConfig(s sandboxSpec, facts hostFacts) *container.HostConfig {
	r := s.resources(facts.cpus)
	pids := int64(r.PIDs)
	never := false
	hc := &container.HostConfig{
		NetworkMode:    "none", // what a sandbox reaches, it reaches over the agent's stream
		IpcMode:        container.IPCModePrivate,
		CgroupnsMode:   container.CgroupnsModePrivate, // on cgroup v1 the engine's default is the host's
		CapDrop:        []string{"ALL"},
		SecurityOpt:    []string{"no-new-privileges:true", "seccomp=" + facts.seccomp}, // AppArmor: the engine's default where it has one
		ReadonlyRootfs: true,
		MaskedPaths:    maskedPaths(facts.cpus, facts.devices),
		ReadonlyPaths:  []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
		Tmpfs:          tmpfs(s, r),
		LogConfig:      container.LogConfig{Type: "none"}, // output goes through the agent; log files of the engine would grow without bound
		RestartPolicy:  container.RestartPolicy{Name: container.RestartPolicyDisabled},
		AutoRemove:     false,  // so that the exit state stays readable
		Init:           &never, // the agent is PID 1 and cannot be traced; docker-init could
		OomScoreAdj:    oomScoreAdj,
		Runtime:        cmp.Or(s.Runtime, facts.runtime),
		Resources: container.Resources{
			Memory:         int64(r.MemoryMB) << 20,
			MemorySwap:     int64(r.MemoryMB) << 20, // equal: no swap
			NanoCPUs:       int64(r.CPUs * 1e9),
			CPUShares:      shares(r.CPUs),
			PidsLimit:      &pids, // not ulimit nproc: Linux counts a uid over all containers
			OomKillDisable: &never,
			CgroupParent:   facts.parent,
			DeviceRequests: s.deviceRequests(),
			Ulimits: []*container.Ulimit{
				{Name: "core", Soft: coreBytes, Hard: coreBytes},
				{Name: "nofile", Soft: openFiles, Hard: openFiles},
			},
		},
	}
	if farm.GVisor(hc.Runtime) {
		// Its kernel is the sandbox's own: it counts the processes of the sandbox, and has a network stack in the sandbox's memory. The engine
		// counts what gVisor needs on the host: some threads for each process.
		hc.Ulimits = append(hc.Ulimits, &container.Ulimit{Name: nproc, Soft: pids, Hard: pids})
		threads := pids*gVisorThreads + gVisorOwnThreads
		hc.PidsLimit = &threads
	} else {
		hc.Sysctls = sysctls()
		if facts.timestamps && !farm.OwnKernel(hc.Runtime) {
			hc.Sysctls["net.core.tstamp_allow_data"] = "0" // else each socket can keep copies of what it sent, without a cgroup: TCP some MiB
		}
	}
	if s.Agent != "" {
		hc.Mounts = []mount.Mount{{
			Type: mount.TypeVolume, Source: s.Agent, Target: fillMount, ReadOnly: true,
			VolumeOptions: &mount.VolumeOptions{NoCopy: true},
		}}
	}
	return hc
}

// pidsOf returns the limit of processes that hostConfig was asked for; 0 if there is none.
func pidsOf(hc *container.HostConfig) int {
	for _, limit := range hc.Ulimits {
		if limit != nil && limit.Name == nproc {
			return int(limit.Hard)
		}
	}
	if hc.PidsLimit == nil {
		return 0
	}
	return int(*hc.PidsLimit)
}

// sysctls are settings of the sandbox's network namespace. They bound what connections that no one has accepted keep: until then the
// kernel charges their data to no cgroup. Data of accepted connections is charged, so their buffers may grow as usual.
func sysctls() map[string]string {
	return map[string]string{
		"net.core.somaxconn":          "128",                // not accepted, for each listener: the default of Linux before 5.4
		"net.ipv4.tcp_rmem":           "4096 16384 6291456", // bytes of one: 16 KiB instead of 128 KiB
		"net.ipv4.tcp_max_tw_buckets": "4096",               // closed connections that wait, some 250 bytes each
	}
}

// tmpfs returns the writable directories. Each has a limit on bytes and on inodes.
func tmpfs(s sandboxSpec, r farm.Resources) map[string]string {
	owned := fmt.Sprintf("mode=0755,uid=%d,gid=%d", s.UID, s.UID)
	shm := shmMB
	if len(s.GPUs) > 0 {
		shm = farm.GPUShmMB
	}
	line := func(exec string, mb, inodes int, owner string) string {
		return fmt.Sprintf("rw,%s,nosuid,nodev,size=%dm,nr_inodes=%d,%s", exec, mb, inodes, owner)
	}
	return map[string]string{
		farm.Workspace: line("exec", r.DiskMB, workInodes, owned),
		farm.HomeDir:   line("exec", farm.HomeFactor*r.DiskMB, homeInodes, owned),
		"/tmp":         line("noexec", r.DiskMB, tmpInodes, "mode=1777"),
		farm.RunDir:    line("noexec", farm.RunMB, runInodes, owned),
		"/dev/shm":     line("noexec", shm, shmInodes, "mode=1777"),
	}
}

// deviceTree is where Linux describes the host's devices: disks with their serial numbers, buses, firmware.
const deviceTree = "/sys/devices"

// driverTree is where drivers describe their devices. NVIDIA's has the model, UUID and firmware of each GPU there.
const driverTree = "/proc/driver"

// busTree has the input devices of the host, and the configuration of those on its buses.
const busTree = "/proc/bus"

// hostDevices lists what is masked of a tree of devices, by name: all but cores, memory and the loopback interface. With buses their devices are
// shown. The names differ from host to host (pci0000:00, platform, …), so they are read where this process runs: on the engine's host, or else
// on a host that may be like it. None if it cannot be read.
func hostDevices(tree string, buses bool) []string {
	list := foldersExcept(tree, "virtual", "net")
	if !buses {
		list = append(foldersExcept(tree, "", "system", "virtual"), list...)
	}
	return list
}

// foldersExcept lists the paths below deviceTree of the folders in a folder of tree.
func foldersExcept(tree, folder string, except ...string) []string {
	entries, _ := os.ReadDir(filepath.Join(tree, folder)) // sorted
	var list []string
	for _, entry := range entries {
		if entry.IsDir() && !slices.Contains(except, entry.Name()) {
			list = append(list, path.Join(deviceTree, folder, entry.Name()))
		}
	}
	return list
}

// maskedPaths begins with the list of engine 28. Older engines mask fewer paths, and this list replaces theirs. Paths that do not exist
// are ignored.
func maskedPaths(cpus int, devices []string) []string {
	paths := []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware",
		"/sys/devices/virtual/powercap",
	}
	for i := range cpus {
		paths = append(paths, fmt.Sprintf("/sys/devices/system/cpu/cpu%d/thermal_throttle", i))
	}
	// users of the host that have keys; files of loop devices; maker and name of the machine
	paths = append(paths, "/proc/key-users", "/sys/devices/virtual/block", "/sys/devices/virtual/dmi")
	// serial numbers of disks, with what is written to them, and the name of a guest of Xen
	paths = append(paths, "/sys/devices/virtual/nvme-subsystem", "/sys/devices/virtual/nvme-fabrics", "/sys/hypervisor")
	// how the host was started and built, its disks with what is written to them, the file locks of all, and
	// what waits for its resources, where anybody could have the kernel watch for it
	paths = append(paths, "/proc/cmdline", "/proc/config.gz", "/proc/diskstats", "/proc/fs", "/proc/locks", "/proc/mdstat", "/proc/partitions", "/proc/pressure", "/proc/spl", "/proc/swaps",
		"/sys/fs/bcachefs", "/sys/fs/btrfs", "/sys/fs/ext4", "/sys/fs/f2fs", "/sys/fs/nilfs2", "/sys/fs/xfs", "/sys/kernel/irq")
	for _, device := range devices {
		if !slices.Contains(paths, device) {
			paths = append(paths, device)
		}
	}
	return paths
}

// uidTries is how often Create takes another uid. Two tries are enough unless creates of several workers meet each time.
const uidTries = 10

// createUnique creates a container whose uid no other container of the engine has, of this farm or another one. The uids are labels of
// the containers, so the engine itself is the record. A container is checked after it is created and before anyone starts it: of two
// that got the same uid at once, at least one sees the other and takes another uid.
func (e *Engine) createUnique(ctx context.Context, s sandboxSpec, cpus int) (string, error) {
	for range uidTries {
		id, err := e.createOnce(ctx, s, cpus)
		if err != nil {
			return "", err
		}
		taken, err := e.uidTaken(ctx, id)
		if err != nil || !taken {
			return id, err
		}
		if err := e.Remove(ctx, id); err != nil {
			return "", err
		}
		if s.UID, err = e.freeUID(ctx); err != nil {
			return "", err
		}
	}
	return "", farm.Errorf(farm.CodeUnavailable, "other sandboxes took each user id that this one chose. Try again in a moment.")
}

// uidTaken reports whether another container has the uid of a container that has not been started.
func (e *Engine) uidTaken(ctx context.Context, id string) (bool, error) {
	got, err := e.Inspect(ctx, id)
	if err != nil || got.Running || got.Labels[LabelUID] == "" { // an earlier attempt checked it and started it
		return false, err
	}
	same, err := e.withUID(ctx, LabelUID+"="+got.Labels[LabelUID])
	for _, c := range same {
		if c.ID != got.ID {
			return true, err
		}
	}
	return false, err
}

// freeUID returns a uid that no container has. It starts at random, so that creates that met do not meet again.
func (e *Engine) freeUID(ctx context.Context) (int, error) {
	all, err := e.withUID(ctx, LabelUID)
	if err != nil {
		return 0, err
	}
	used := map[int]bool{}
	for _, c := range all {
		if uid, err := strconv.Atoi(c.Labels[LabelUID]); err == nil {
			used[uid] = true
		}
	}
	return farm.NextUID(farm.FirstUID+rand.IntN(farm.UIDs), used) //nolint:gosec // no secret
}

// withUID lists the containers, of all farms and in any state, that have a label of a uid.
func (e *Engine) withUID(ctx context.Context, label string) (found []container.Summary, err error) {
	err = e.call(ctx, readTimeout, "list user ids", func(ctx context.Context) error {
		found, err = e.cli.ContainerList(ctx, container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("label", label))})
		return err
	})
	return found, err
}

package engine

import (
	"cmp"
	"fmt"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"

	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	cpuShares   = 128 // where a sandbox lies beside services, an eighth of their weight; under the sandboxes' own cgroup, as much as any other
	oomScoreAdj = 500 // a sandbox dies before the engine does; user code can lower it to 0 again, so the cgroup is the limit
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
	devices []string // of the host that a sandbox does not see, below deviceTree

	timestamps bool // a network namespace has a setting for timestamps of its own
}

// hostConfig is the hardened profile: a pure function of the spec and the facts. The package's tests check each field.
func hostConfig(s Spec, facts hostFacts) *container.HostConfig {
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
			CPUShares:      cpuShares,
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
	if s.AgentVolume != "" {
		hc.Mounts = []mount.Mount{{
			Type: mount.TypeVolume, Source: s.AgentVolume, Target: s.AgentMount, ReadOnly: true,
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
func tmpfs(s Spec, r farm.Resources) map[string]string {
	owned := fmt.Sprintf("mode=0755,uid=%d,gid=%d", s.UID, s.UID)
	shm := shmMB
	if len(s.GPUs) > 0 {
		shm = gpuShmMB
	}
	line := func(exec string, mb, inodes int, owner string) string {
		return fmt.Sprintf("rw,%s,nosuid,nodev,size=%dm,nr_inodes=%d,%s", exec, mb, inodes, owner)
	}
	return map[string]string{
		farm.Workspace: line("exec", r.DiskMB, workInodes, owned),
		homeDir:        line("exec", homeFactor*r.DiskMB, homeInodes, owned),
		"/tmp":         line("noexec", r.DiskMB, tmpInodes, "mode=1777"),
		runDir:         line("noexec", runMB, runInodes, owned),
		"/dev/shm":     line("noexec", shm, shmInodes, "mode=1777"),
	}
}

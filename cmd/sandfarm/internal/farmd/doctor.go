package farmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent/binary"
	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/queue"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/worker/placement"
)

// Finding is the result of one check.
type Finding struct {
	What   string `json:"what"`
	Status string `json:"status"` // ok, note or problem
	Found  string `json:"found"`
	Advice string `json:"advice,omitempty"` // how to fix it
}

// Statuses of findings. With a note something is limited; with a problem the farm does not run.
const (
	StatusOK      = "ok"
	StatusNote    = "note"
	StatusProblem = "problem"
)

// doctorTimeout bounds each check.
const doctorTimeout = 20 * time.Second

// Doctor checks everything that a farm needs and says how to fix each problem.
func Doctor(ctx context.Context, s *Settings) []Finding {
	var out []Finding
	out = append(out, doctorEngine(ctx, s)...)
	out = append(out, doctorGPU(ctx, s)...)
	out = append(out, doctorRedis(ctx, s)...)
	out = append(out, doctorS3(ctx, s)...)
	out = append(out, doctorIndex(ctx, s)...)
	out = append(out, doctorData(s)...)
	out = append(out, doctorQuotas(s)...)
	return out
}

func doctorEngine(ctx context.Context, s *Settings) []Finding {
	ctx, done := context.WithTimeout(ctx, 3*doctorTimeout)
	defer done()
	if s.Engine.Kind == kindKubernetes {
		return []Finding{doctorCluster(ctx, s), doctorAgent(runtime.GOARCH)}
	}
	e, err := s.engine(Logger(s))
	if err != nil {
		return []Finding{{What: "engine", Status: StatusProblem, Found: err.Error(), Advice: "Correct engine.host."}}
	}
	defer func() { _ = e.Close() }()
	info, err := e.Info(ctx)
	if err != nil {
		return []Finding{{
			What: "engine", Status: StatusProblem, Found: "no Docker engine answers",
			Advice: "Start it (systemctl start docker, or run dockerd), or install it (Debian: apt-get install docker.io). `make run` does both if it is allowed to.",
		}, doctorAgent(runtime.GOARCH)}
	}
	out := []Finding{
		{What: "engine", Status: StatusOK, Found: fmt.Sprintf("Docker %s, API %s, %s, %s", info.Version, info.APIVersion, info.OS, info.Arch)},
		{What: "kernel", Status: StatusOK, Found: fmt.Sprintf("%s, %d cores, %d MiB", info.KernelVersion, info.CPUs, info.MemoryBytes>>20)},
		doctorAgent(info.Arch),
	}
	if olderThan(info.Version, 29, 5) {
		out[0].Status = StatusNote
		out[0].Advice = "Engines before 29.5.1 and runc before 1.2.8 have known escapes: upgrade, or use gVisor (engine.runtime = runsc), before you run untrusted code."
	}
	cgroup := Finding{What: "cgroups", Status: StatusOK, Found: "version " + info.CgroupVersion}
	if info.CgroupVersion == "1" {
		cgroup.Status, cgroup.Advice = StatusNote, "Version 1 works, but charges the memory of TCP and UDP buffers to no sandbox. Each has a limit of its own for it, 64 MiB, if a worker may make the cgroup of all sandboxes (below). Version 2 charges it to memory_mb."
	}
	quota := Finding{What: "storage quota", Status: StatusOK, Found: info.StorageDriver + " can limit the size of containers"}
	if !info.StorageQuota {
		quota.Status, quota.Found = StatusNote, info.StorageDriver+" cannot limit the size of containers"
		quota.Advice = "Nothing to do: workspaces are memory file systems with their own size, which counts as memory_mb."
	}
	out = append(out, cgroup, doctorSandboxCgroup(ctx, s, e), quota)
	out = append(out, doctorRuntimes(ctx, s, e, info)...)
	out = append(out, doctorImages(ctx, e))
	if limits := s.Limits; !strings.HasPrefix(s.Engine.Host, "tcp://") && !strings.HasPrefix(s.Engine.Host, "ssh://") {
		out = append(out, doctorHost("/proc/sys", max(1, int(info.MemoryBytes>>20)/limits.Memory.Default), int(info.MemoryBytes>>20))...)
	}
	return out
}

// doctorAgent checks that the program contains the agent for an architecture: one from go install has none.
func doctorAgent(arch string) Finding {
	_, version, err := binary.Agent(arch)
	if err != nil {
		return Finding{
			What: "agent", Status: StatusProblem, Found: "this program does not contain the agent for linux/" + arch + ", which every sandbox needs",
			Advice: "Build the program with `make build`, or download a release archive: `go install` leaves the agent out.",
		}
	}
	return Finding{What: "agent", Status: StatusOK, Found: "version " + version + " for linux/" + arch}
}

// doctorSandboxCgroup checks whether a worker here can bound the memory of all sandboxes together.
func doctorSandboxCgroup(ctx context.Context, s *Settings, e *engine.Engine) Finding {
	f := Finding{What: "sandboxes' cgroup", Status: StatusOK, Found: "workers on this host limit the memory of all sandboxes together"}
	if s.Worker.SandboxCgroup == placement.CgroupNone {
		f.Status, f.Found = StatusNote, "worker.sandbox_cgroup is none"
		f.Advice = "If sandboxes use more memory than the host has, it is slow until the kernel ends some of them. Remove the setting, or set worker.memory_overcommit = 1."
		return f
	}
	if err := e.CheckLimitSandboxes(ctx); err != nil {
		f.Status, f.Found = StatusNote, "the memory of all sandboxes together is not limited: "+err.Error()
		f.Advice = "If sandboxes use more memory than the host has, it is slow until the kernel ends some of them. Run the worker as root on the engine's host, or set worker.memory_overcommit = 1."
	}
	return f
}

func doctorImages(ctx context.Context, e *engine.Engine) Finding {
	list, err := e.Images(ctx)
	if err != nil {
		return Finding{What: "images", Status: StatusProblem, Found: err.Error()}
	}
	names := make([]string, 0, len(list))
	for _, image := range list {
		names = append(names, image.Name)
	}
	if len(names) == 0 {
		return Finding{What: "images", Status: StatusNote, Found: "no sandbox image yet", Advice: "`sandfarm up` builds it, or run `sandfarm image build python`."}
	}
	return Finding{What: "images", Status: StatusOK, Found: strings.Join(names, ", ")}
}

func doctorRedis(ctx context.Context, s *Settings) []Finding {
	if s.Redis.URL == "" {
		path, err := exec.LookPath("redis-server")
		if err != nil {
			return []Finding{{What: "Redis", Status: StatusNote, Found: "no redis-server in PATH", Advice: "`sandfarm up` keeps jobs in memory and loses them when it stops. Install it (Debian: apt-get install redis-server), or set redis.url."}}
		}
		return []Finding{{What: "Redis", Status: StatusOK, Found: path + ", run by `sandfarm up` with an append-only file, policy noeviction"}}
	}
	address, err := ParseRedis(s.Redis.URL)
	if err != nil {
		return []Finding{{What: "Redis", Status: StatusProblem, Found: "redis.url is not valid", Advice: err.Error()}}
	}
	ctx, done := context.WithTimeout(ctx, doctorTimeout)
	defer done()
	rdb := address.Open()
	st := store.New(rdb, queue.EnqueueLua(), store.Options{Limits: s.Limits, Logger: Logger(s)})
	defer func() { _, _ = st.Close(), rdb.Close() }()
	if err := st.Ping(ctx); err != nil {
		return []Finding{{What: "Redis", Status: StatusProblem, Found: address.String() + " does not answer", Advice: "Start it, or correct redis.url."}}
	}
	aof, policy, err := st.Persistence(ctx)
	if err != nil {
		return []Finding{{What: "Redis", Status: StatusNote, Found: "answers, but does not show its settings", Advice: "Make sure that it has appendonly yes and maxmemory-policy noeviction."}}
	}
	f := Finding{What: "Redis", Status: StatusOK, Found: fmt.Sprintf("%s, appendonly %v, policy %s", address, aof, policy)}
	if policy != "noeviction" {
		f.Status, f.Advice = StatusProblem, "Set maxmemory-policy noeviction: any other policy silently drops jobs. "
	}
	if !aof {
		f.Status = StatusProblem
		f.Advice += "Set appendonly yes: without it accepted jobs are lost when Redis stops."
	}
	return []Finding{f}
}

func doctorS3(ctx context.Context, s *Settings) []Finding {
	if s.S3.Endpoint == "" {
		return []Finding{{What: "S3", Status: StatusOK, Found: "built in, files in " + s.path("s3")}}
	}
	ctx, done := context.WithTimeout(ctx, doctorTimeout)
	defer done()
	b, err := blob.New(blob.Config{Endpoint: s.S3.Endpoint, PublicURL: s.S3.PublicURL, AccessKey: s.S3.AccessKey, SecretKey: s.S3.SecretKey, Bucket: s.S3.Bucket, Region: s.S3.Region})
	if err == nil {
		err = b.Ping(ctx)
	}
	if errors.Is(err, blob.ErrNoBucket) {
		return []Finding{{What: "S3", Status: StatusOK, Found: s.S3.Endpoint + "; the farm makes the bucket " + s.S3.Bucket + " when it starts"}}
	}
	if err != nil {
		return []Finding{{What: "S3", Status: StatusProblem, Found: s.S3.Endpoint + " does not answer correctly", Advice: "Start it, or correct s3.endpoint and its keys."}}
	}
	return []Finding{{What: "S3", Status: StatusOK, Found: s.S3.Endpoint}}
}

func doctorData(s *Settings) []Finding {
	f := Finding{What: "data directory", Status: StatusOK, Found: s.Data}
	probe, err := os.CreateTemp(existingParent(s.Data), ".sandfarm-doctor-*")
	if err != nil {
		f.Status, f.Advice = StatusProblem, "It is not writable: set data (SANDFARM_DATA) to a directory that you can write."
		return []Finding{f}
	}
	_ = probe.Close()
	_ = os.Remove(probe.Name())
	return []Finding{f}
}

// existingParent is the path itself, or the closest directory above it that exists.
func existingParent(path string) string {
	for {
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			return path
		}
		parent := path[:max(strings.LastIndexByte(path, os.PathSeparator), 1)]
		if parent == path {
			return path
		}
		path = parent
	}
}

// olderThan reports whether a version such as "20.10.24+dfsg1" is before major.minor. It is false for an unreadable version.
func olderThan(version string, major, minor int) bool {
	var a, b int
	if n, _ := fmt.Sscanf(version, "%d.%d", &a, &b); n < 2 {
		return false
	}
	return a < major || a == major && b < minor
}

package worker

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/relay"
	"github.com/sandfarm/sandfarm/internal/secret"
	"github.com/sandfarm/sandfarm/internal/signature"
	"github.com/sandfarm/sandfarm/worker/execution"
	"github.com/sandfarm/sandfarm/worker/placement"
)

// Config holds the settings of a worker.
type Config struct {
	Slots          int           `toml:"slots" default:"64" min:"1" max:"10000" doc:"Jobs of one tenant at once. Background commands count too. Several tenants have twice as many in all."`
	Images         []string      `toml:"images" default:"python" doc:"Sandbox images that are built at start when the engine has none."`
	CreateTimeout  time.Duration `toml:"create_timeout" default:"60s" min:"1s" doc:"How long a sandbox may take to start, kernel included."`
	Grace          time.Duration `toml:"-"` // between the interrupt and the kill of code that runs out of time or is cancelled
	StopGrace      time.Duration `toml:"stop_grace" default:"10s" min:"10ms" doc:"How long a stopping worker waits for its jobs. After that they keep running in their sandboxes, and another worker takes them over."`
	ReconcileEvery time.Duration `toml:"reconcile_every" default:"30s" min:"100ms" doc:"How often the engine's containers are compared with the records."`
	UploadRetry    time.Duration `toml:"-"` // how long an outage of the object store holds up jobs that have files to upload; after that their uploads get one try each, and a job whose files cannot be stored fails. Redis is waited for as long as it takes
	UploadParallel int           `toml:"-"` // artifacts of one job that are uploaded in parallel
	EngineTimeout  time.Duration `toml:"engine_timeout" default:"0s" min:"0s" doc:"How long the engine may not answer before its sandboxes are marked as lost. 0: a minute; in a cluster ten, since Pods run on while the API server is away."`

	MemoryReserveMB  int     `toml:"memory_reserve_mb" default:"512" min:"0" doc:"MiB of the engine's host that sandboxes do not get."`
	MemoryOvercommit float64 `toml:"memory_overcommit" default:"16" min:"0.01" max:"1000" doc:"How much memory sandboxes can reserve for each MiB that the host has for them. An idle sandbox uses some 40 MiB of its limit. With 1, all reservations fit at once."`
	CPUOvercommit    float64 `toml:"cpu_overcommit" default:"128" min:"0.01" max:"1000" doc:"How many cores sandboxes can reserve for each core of the host. Only running code uses cores, and most sandboxes are idle."`

	SandboxCgroup string `toml:"sandbox_cgroup" default:"auto" doc:"auto: all sandboxes of a node lie under one cgroup, limited to the memory that the host has for sandboxes and to three quarters of its processes, so that the kernel never kills the engine, Redis or a worker for them. This needs a worker on the engine's host that may write cgroups; elsewhere, and with none, the engine's cgroup is used."`

	OutputSpoolMB int `toml:"output_spool_mb" default:"0" min:"0" doc:"Space in the temporary directory for output that waits for its upload once the memory for that is used up (a quarter of memory_budget_mb), in MiB. A tenant gets at most half. What fits into neither is cut: the result has head and tail. 0: a quarter of the directory's free space, at most 4096, and none if the directory is in memory (tmpfs)."`

	GPUs        []string `toml:"gpus" doc:"GPUs for sandboxes, such as \"model=A100,memory_mb=81920,count=8\" (also id=: a UUID of the driver, or a number). Empty: those that nvidia-smi finds on the worker's host, and none in a cluster, where a model is a value of the label nvidia.com/gpu.product and count the devices of one machine. none: none."`
	GPUTakesCPU bool     `toml:"gpu_takes_cpu" default:"true" doc:"Whether a worker with GPUs also takes jobs without a GPU."`

	Pool     []string      `toml:"pool" default:"auto" doc:"Warm pool: how many sandboxes of an image are started ahead of need, with a running kernel, such as python=2, or python@runsc=2 for sandboxes with an OCI runtime that callers choose. auto: an eighth of the memory that is free on the node, at most one for each core and 16, of the image python, in equal parts for each runtime that sandboxes may have. none: no pool."`
	PoolAge  time.Duration `toml:"-"` // how old a sandbox of the warm pool may become before it is replaced
	PoolFill int           `toml:"-"` // how many sandboxes of the warm pool are started at a time. None are started while creates wait

	InstallTimeout   time.Duration `toml:"-"` // timeout of installing the packages of a create or a run, or of auto_install. An install job has its own timeout
	AutoInstallAllow []string      `toml:"auto_install_allow" doc:"Python packages that auto_install may install. Empty: all."`
	AutoInstallDeny  []string      `toml:"auto_install_deny" doc:"Python packages that auto_install never installs."`

	Listen          string `toml:"listen" default:"auto" doc:"Address on which the worker takes interactive streams (processes of sandboxes) from the API, by TLS with certificates that the farm makes for itself: host:port; auto, or auto:port: the address by which this machine reaches Redis, which is loopback if Redis is on this machine; none: no such streams. Workers announce it; the API must reach it."`
	LiveConnections int    `toml:"-"` // connections to listen at a time, beside those to ports, which are streams; others wait. One has up to 250 streams
	LiveStreams     int    `toml:"-"` // interactive streams of all tenants at a time on this worker

	Runtimes      []string          `toml:"-"` // OCI runtimes that callers may choose, beside the engine's default
	ImageRuntimes map[string]string `toml:"-"` // of images whose sandboxes do not have the default

	AllowedImages []string          `toml:"-"` // ids or digests of the images that sandboxes may have; empty: any
	Signatures    *signature.Folder `toml:"-"` // those that images need; nil: none

	Limits farm.Limits `toml:"-"`
	// Allow is what sandboxes of the network allowlist may reach at most; empty: nothing. Private are ranges of addresses that count as public.
	Allow   []farm.HostRule `toml:"-"`
	Private []netip.Prefix  `toml:"-"`
	// Secrets open the secrets of sandboxes; nil: hosts with a secret are not reached.
	Secrets *secret.Keys `toml:"-"`
	Version string       `toml:"-"`
	Host    string       `toml:"-"`
}

func (c Config) withDefaults() Config {
	setDefault(&c.Slots, 64)
	setDefault(&c.CreateTimeout, time.Minute)
	setDefault(&c.Grace, 2*time.Second)
	setDefault(&c.StopGrace, 10*time.Second)
	setDefault(&c.ReconcileEvery, 30*time.Second)
	setDefault(&c.UploadRetry, 2*time.Minute)
	setDefault(&c.UploadParallel, 8)
	setDefault(&c.InstallTimeout, 5*time.Minute)
	setDefault(&c.EngineTimeout, time.Minute)
	setDefault(&c.PoolAge, time.Hour)
	setDefault(&c.PoolFill, 2)
	setDefault(&c.Listen, relay.ListenAuto)
	setDefault(&c.LiveConnections, 128)
	setDefault(&c.LiveStreams, 4000)
	setDefault(&c.SandboxCgroup, placement.CgroupAuto)
	setDefault(&c.MemoryOvercommit, 16)
	setDefault(&c.CPUOvercommit, 128)
	c.AutoInstallAllow, c.AutoInstallDeny = normal(c.AutoInstallAllow), normal(c.AutoInstallDeny)
	if c.Limits == (farm.Limits{}) {
		c.Limits = farm.DefaultLimits()
	}
	return c
}

// Validate reports every problem of the settings. Zero fields count as their defaults.
func (c Config) Validate() error { return c.withDefaults().validate() }

func (c Config) validate() error {
	var errs []error
	if c.Slots < 1 || c.Slots > 10_000 {
		errs = append(errs, fmt.Errorf("worker.slots is %d; 1 to 10000 are allowed", c.Slots))
	}
	if c.OutputSpoolMB < 0 {
		errs = append(errs, fmt.Errorf("worker.output_spool_mb is %d; it cannot be negative", c.OutputSpoolMB))
	}
	if err := relay.CheckListen(c.Listen); err != nil {
		errs = append(errs, fmt.Errorf("worker.listen: %w", err))
	}
	if err := c.placement().Validate(); err != nil {
		errs = append(errs, err)
	}
	for _, s := range []struct {
		name string
		d    time.Duration
	}{
		{"create_timeout", c.CreateTimeout},
		{"stop_grace", c.StopGrace},
		{"reconcile_every", c.ReconcileEvery},
		{"engine_timeout", c.EngineTimeout},
	} {
		if s.d < 0 {
			errs = append(errs, fmt.Errorf("worker.%s is %s; it cannot be negative", s.name, s.d))
		}
	}
	for _, name := range slices.Concat(c.AutoInstallAllow, c.AutoInstallDeny) {
		if _, ok := farm.RequirementName(farm.ManagerPip, name); !ok {
			errs = append(errs, fmt.Errorf("worker.auto_install_allow and auto_install_deny take names of packages; %q is not one", name))
		}
	}
	return errors.Join(errs...)
}

// placement returns the settings of package placement.
func (c Config) placement() placement.Config {
	return placement.Config{
		MemoryReserveMB: c.MemoryReserveMB, SandboxCgroup: c.SandboxCgroup, MemoryOvercommit: c.MemoryOvercommit, CPUOvercommit: c.CPUOvercommit,
		GPUs: c.GPUs, GPUTakesCPU: c.GPUTakesCPU,
		Pool: c.Pool, PoolAge: c.PoolAge, PoolFill: c.PoolFill,
		CreateTimeout: c.CreateTimeout, UploadRetry: c.UploadRetry, Limits: c.Limits, Version: c.Version,
	}
}

// execution returns the settings of package execution.
func (c Config) execution() execution.Config {
	return execution.Config{
		Grace: c.Grace, EngineTimeout: c.EngineTimeout, UploadRetry: c.UploadRetry, UploadParallel: c.UploadParallel, InstallTimeout: c.InstallTimeout,
		AutoInstallAllow: c.AutoInstallAllow, AutoInstallDeny: c.AutoInstallDeny, OutputSpoolMB: c.OutputSpoolMB, Limits: c.Limits,
		Allowlist: len(c.Allow) > 0,
	}
}

// normal returns the normal form of package names, in which they are compared.
func normal(names []string) []string {
	out := make([]string, len(names))
	for i, name := range names {
		out[i] = farm.NormalPackage(farm.ManagerPip, name)
	}
	return out
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

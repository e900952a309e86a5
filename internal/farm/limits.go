package farm

import (
	"errors"
	"fmt"
	"time"
)

// Limits bound what a caller may request. Those with a name in toml are settings, the others constants of every farm, which tests change. GET /v1/limits shows
// them. A zero field means its default (see DefaultLimits).
type Limits struct {
	MaxBodyBytes  int64 `json:"max_body_bytes" toml:"-"` // bytes of a JSON body
	MaxBodyValues int   `json:"max_body_values" toml:"-" doc:"JSON values of a body; no setting, see MaxBodyValues."`
	MaxCodeBytes  int64 `json:"max_code_bytes" toml:"-"` // bytes of the code of one execution
	MaxFileBytes  int64 `json:"max_file_bytes" toml:"max_file_bytes" min:"1" doc:"Bytes of one uploaded file or tar."`
	MaxInputBytes int64 `json:"max_input_bytes" toml:"-"` // bytes of the files of one run, together

	TimeoutDefaultSeconds int `json:"timeout_default_seconds" toml:"timeout_default_seconds" min:"1" doc:"Timeout of a job that sets none."`
	TimeoutMaxSeconds     int `json:"timeout_max_seconds" toml:"timeout_max_seconds" min:"1" doc:"Maximum timeout of a job."`
	WaitMaxSeconds        int `json:"wait_max_seconds" toml:"-"` // maximum wait of a request for its job

	TTLDefaultSeconds  int `json:"ttl_default_seconds" toml:"ttl_default_seconds" min:"1" doc:"Lifetime of a sandbox that sets none."`
	TTLMinSeconds      int `json:"ttl_min_seconds" toml:"-"` // minimum lifetime of a sandbox
	TTLMaxSeconds      int `json:"ttl_max_seconds" toml:"ttl_max_seconds" min:"1" doc:"Maximum lifetime of a sandbox."`
	IdleDefaultSeconds int `json:"idle_default_seconds" toml:"idle_default_seconds" min:"0" doc:"Idle limit of a sandbox that sets none: how long it lives after its last use. 0: no limit."`
	IdleMinSeconds     int `json:"idle_min_seconds" toml:"-"` // minimum idle limit of a sandbox

	Memory IntLimits `json:"memory_mb" toml:"memory_mb" doc:"Memory of a sandbox in MiB; files in its workspace count."`
	CPUs   CPULimits `json:"cpus" toml:"cpus" doc:"Cores of a sandbox."`
	PIDs   IntLimits `json:"pids" toml:"pids" doc:"Processes and threads of a sandbox."`
	Disk   IntLimits `json:"disk_mb" toml:"disk_mb" doc:"Workspace of a sandbox in MiB; installed packages may take four times that."`

	MaxEnv          int `json:"max_env" toml:"-"`           // Environment variables of one request
	MaxEnvBytes     int `json:"max_env_bytes" toml:"-"`     // Bytes of their names and values together
	MaxLabels       int `json:"max_labels" toml:"-"`        // Labels of a sandbox
	MaxLabelBytes   int `json:"max_label_bytes" toml:"-"`   // Bytes of the key or the value of a label
	MaxNameBytes    int `json:"max_name_bytes" toml:"-"`    // Bytes of the name of a sandbox
	MaxCommands     int `json:"max_commands" toml:"-"`      // Commands of one job
	MaxPackages     int `json:"max_packages" toml:"-"`      // Packages of one request
	MaxPackageBytes int `json:"max_package_bytes" toml:"-"` // bytes of one package's name and versions
	MaxBatch        int `json:"max_batch" toml:"-"`         // Jobs of one batch
	MaxContexts     int `json:"max_contexts" toml:"-" doc:"Contexts (kernels) of a sandbox, as the agent has them; no setting."`
	MaxAllowHosts   int `json:"max_allow_hosts" toml:"-"`  // Rules in allow_hosts of one sandbox
	MaxSecrets      int `json:"max_secrets" toml:"-"`      // Secrets of one sandbox
	MaxSecretBytes  int `json:"max_secret_bytes" toml:"-"` // bytes of the value of one secret
	MaxWaiting      int `json:"max_waiting" toml:"-"`      // Jobs that wait in the FIFO of one sandbox

	EgressConnections       int `json:"egress_connections" toml:"-"`         // Connections to allowed hosts that a sandbox may have open at once
	EgressConnectsPerMinute int `json:"egress_connects_per_minute" toml:"-"` // connections to hosts that a sandbox may ask for in a minute, refused ones too
	EgressMB                int `json:"egress_mb" toml:"egress_mb" min:"1" doc:"MiB that a sandbox may exchange with allowed hosts in its life, both directions together."`
	MaxEgressEntries        int `json:"-" toml:"-"` // connections in the egress log of a sandbox; the newest are kept

	MaxProcesses       int `json:"max_processes" toml:"-"`        // Processes that callers started in a sandbox beside its jobs and that run at once. Beside it, the sandbox's own limit of processes and threads holds
	MaxProcessReaders  int `json:"max_process_readers" toml:"-"`  // Readers of the output of one process at once
	MaxProcessRestarts int `json:"max_process_restarts" toml:"-"` // how often a process with restart = on-failure is started again, each time after a run of less than a minute. A longer run counts from the start
	LiveStreams        int `json:"live_streams" toml:"-"`         // Interactive streams (output of processes, input) that a tenant may have open at once on one worker

	MaxOutputMB        int   `json:"max_output_mb" toml:"max_output_mb" min:"1" doc:"MiB of each of stdout and stderr of a job that leave the sandbox. What is beyond is dropped from the middle, or the code is stopped (on_output_limit)."`
	MaxStreamInline    int   `json:"max_stream_inline_bytes" toml:"-"` // bytes of an output stream in the result. Of a longer one the result has head and tail, and the whole is an artifact
	MaxResultInline    int   `json:"max_result_inline_bytes" toml:"-"` // bytes of the output streams of all commands of a job in its result. Beyond it, each stream has head and tail of 16 KiB
	MaxStreamEvents    int   `json:"max_stream_event_bytes" toml:"-"`  // Bytes of the stdout of a job, and of its stderr, sent as events; of all its commands together
	MaxInlineRich      int   `json:"max_inline_rich_bytes" toml:"-"`   // Bytes of a displayed value in the result. A larger one is an artifact
	MaxArtifacts       int   `json:"max_artifacts" toml:"-"`           // Artifacts of one job
	MaxArtifactBytes   int64 `json:"max_artifact_bytes" toml:"max_artifact_bytes" min:"1" doc:"Bytes of one artifact."`
	LinkSeconds        int   `json:"link_seconds" toml:"link_seconds" min:"1" doc:"Lifetime of a download link."`
	RetentionSeconds   int   `json:"retention_seconds" toml:"retention_seconds" min:"1" doc:"How long finished jobs and their artifacts are kept."`
	ClosedSeconds      int   `json:"closed_seconds" toml:"-"`      // how long closed sandboxes stay readable
	IdempotencySeconds int   `json:"idempotency_seconds" toml:"-"` // how long an Idempotency-Key is remembered
	HiddenSeconds      int   `json:"-" toml:"-"`                   // How long records of reads are kept
	MaxQueueDepth      int   `json:"max_queue_depth" toml:"-"`     // Jobs of a tenant that wait in one queue
	QueueShare         int   `json:"-" toml:"-"`                   // Tasks of a tenant in one queue that no worker has begun. Its other runnable jobs are parked, so jobs of other tenants wait behind this many at most. Reads of files, interrupts and restarts have such a share for each kind, and count until they end: so many of a tenant run at once in one queue, and worker.slots should be at least eight times as many
	MaxFinished        int   `json:"-" toml:"-"`                   // Jobs of a tenant that are kept. Beyond it the oldest finished ones are removed before retention_seconds have passed, with their Idempotency-Keys; their artifacts stay
	MaxCallbacks       int   `json:"-" toml:"-"`                   // callbacks of a tenant that are not delivered. Beyond it the oldest are given up, and their jobs may be removed like others: see MaxFinished
	MaxQueued          int   `json:"max_queued" toml:"-"`          // unfinished jobs of a tenant that has no quota max_queued of its own
	MaxKeys            int   `json:"-" toml:"-"`                   // API keys made at run time
	MaxAudit           int   `json:"-" toml:"-"`                   // Entries of the audit that are kept of each tenant
	UsageDays          int   `json:"-" toml:"-"`                   // Days for which the usage of a tenant is kept

	// Quotas are those of tenants without their own. They are a table of settings of their own, and shown by GET /v1/usage.
	Quotas Quotas `json:"-" toml:"-" doc:"Quotas of tenants without their own."`
}

// IntLimits bounds a whole number.
type IntLimits struct {
	Default int `json:"default" toml:"default" min:"1" doc:"Value of a request that sets none."`
	Min     int `json:"min" toml:"-"` // minimum of a request
	Max     int `json:"max" toml:"max" min:"1" doc:"Maximum of a request."`
}

// CPULimits bounds cores.
type CPULimits struct {
	Default float64 `json:"default" toml:"default" min:"0.01" doc:"Value of a request that sets none."`
	Min     float64 `json:"min" toml:"-"` // minimum of a request
	Max     float64 `json:"max" toml:"max" min:"0.01" doc:"Maximum of a request."`
}

// MaxBodyValues is how many values a JSON body may have, arrays and objects counted: a value of a byte takes dozens in memory once it is
// decoded. Each of the 1000 jobs of a batch may have almost 250.
const MaxBodyValues = 250_000

const defaultMaxQueued = 100_000

// TenantQuotas are the quotas of a tenant without its own.
func (l Limits) TenantQuotas() Quotas {
	q := l.Quotas
	if q == (Quotas{}) {
		q = DefaultQuotas()
	}
	q.MaxQueued = l.MaxQueued
	return q
}

// DefaultLimits are the limits of a farm without settings.
func DefaultLimits() Limits {
	day := int((24 * time.Hour).Seconds())
	return Limits{
		MaxBodyBytes: 16 << 20, MaxBodyValues: MaxBodyValues, MaxCodeBytes: 10 << 20, MaxFileBytes: 5 << 30, MaxInputBytes: 12 << 20,
		TimeoutDefaultSeconds: 300, TimeoutMaxSeconds: day, WaitMaxSeconds: 60,
		TTLDefaultSeconds: day, TTLMinSeconds: 5, TTLMaxSeconds: 7 * day,
		IdleDefaultSeconds: 0, IdleMinSeconds: 5,
		Memory: IntLimits{Default: 2048, Min: 64, Max: 65536},
		CPUs:   CPULimits{Default: 2, Min: 0.05, Max: 64},
		PIDs:   IntLimits{Default: 256, Min: 32, Max: 1024}, // the agent, a kernel with numpy and a shell have some 24
		Disk:   IntLimits{Default: 1024, Min: 16, Max: 65536},
		MaxEnv: 256, MaxEnvBytes: 256 << 10, MaxLabels: 64, MaxLabelBytes: 256, MaxNameBytes: 128,
		MaxCommands: 256, MaxPackages: 100, MaxPackageBytes: 256, MaxBatch: 1000, MaxContexts: 32, MaxWaiting: 10_000,
		MaxAllowHosts: 100, MaxSecrets: 16, MaxSecretBytes: 4096, EgressConnections: 64, EgressConnectsPerMinute: 600, EgressMB: 10 << 10, MaxEgressEntries: 1000,
		MaxProcesses: 64, MaxProcessReaders: 16, MaxProcessRestarts: 10, LiveStreams: 1000,
		MaxOutputMB: 100, MaxStreamInline: 1 << 20, MaxResultInline: 8 << 20, MaxStreamEvents: 8 << 20, MaxInlineRich: 256 << 10,
		MaxArtifacts: 10_000, MaxArtifactBytes: 5 << 30,
		LinkSeconds: 3600, RetentionSeconds: 7 * day, ClosedSeconds: day, IdempotencySeconds: day,
		HiddenSeconds: 300, MaxQueued: defaultMaxQueued, MaxQueueDepth: 10_000, QueueShare: 8, MaxFinished: 200_000, MaxCallbacks: 10_000,
		MaxKeys: 10_000, MaxAudit: 5000,
		UsageDays: 100, Quotas: DefaultQuotas(),
	}
}

// WithinRetention returns the limits of records that are kept for no longer than finished jobs are.
func (l Limits) WithinRetention() Limits {
	l.IdempotencySeconds = min(l.IdempotencySeconds, l.RetentionSeconds)
	l.ClosedSeconds = min(l.ClosedSeconds, l.RetentionSeconds)
	l.HiddenSeconds = min(l.HiddenSeconds, l.RetentionSeconds)
	return l
}

// Validate reports every bound that contradicts another. Zero fields count as zero: see DefaultLimits.
func (l Limits) Validate() error {
	var errs []error
	for _, b := range []struct {
		name          string
		low, mid, top float64
	}{
		{"timeout", 1, float64(l.TimeoutDefaultSeconds), float64(l.TimeoutMaxSeconds)},
		{"ttl", float64(l.TTLMinSeconds), float64(l.TTLDefaultSeconds), float64(l.TTLMaxSeconds)},
		{"memory_mb", float64(l.Memory.Min), float64(l.Memory.Default), float64(l.Memory.Max)},
		{"cpus", l.CPUs.Min, l.CPUs.Default, l.CPUs.Max},
		{"pids", float64(l.PIDs.Min), float64(l.PIDs.Default), float64(l.PIDs.Max)},
		{"disk_mb", float64(l.Disk.Min), float64(l.Disk.Default), float64(l.Disk.Max)},
	} {
		if b.low > b.mid || b.mid > b.top {
			errs = append(errs, fmt.Errorf("limits.%s: the minimum is %g, the default %g and the maximum %g; they must not decrease", b.name, b.low, b.mid, b.top))
		}
	}
	if l.IdleDefaultSeconds != 0 && l.IdleDefaultSeconds < l.IdleMinSeconds {
		errs = append(errs, fmt.Errorf("limits.idle_default_seconds is %d, below idle_min_seconds, %d", l.IdleDefaultSeconds, l.IdleMinSeconds))
	}
	return errors.Join(errs...)
}

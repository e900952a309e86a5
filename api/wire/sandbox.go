package wire

import "time"

// Sandbox is a sandbox as callers see it. It has only the names of its environment variables.
type Sandbox struct {
	ID          string            `json:"id" doc:"id of the sandbox"`
	Name        string            `json:"name" doc:"name that the caller gave; need not be unique"`
	State       string            `json:"state" doc:"state of the sandbox" enum:"queued,starting,ready,busy,hibernated,closing,closed,expired,failed,lost"`
	Reason      string            `json:"reason" doc:"why it failed, was lost or ended; empty otherwise"`
	Image       string            `json:"image" doc:"name of its image"`
	Network     string            `json:"network" doc:"what it can reach" enum:"none,packages,allowlist"`
	AllowHosts  []string          `json:"allow_hosts" doc:"rules of the hosts that it can reach, with the network allowlist"`
	Secrets     []string          `json:"secrets" doc:"names of its secrets, which the proxy adds to requests; values are never shown"`
	Resources   Resources         `json:"resources" doc:"what it may use"`
	Runtime     string            `json:"runtime" doc:"OCI runtime of its container, such as runc or runsc (gVisor); empty until a worker has begun to start it, unless one was asked for"`
	Generation  int               `json:"generation" doc:"1 at first; rises each time that its creation begins anew, so what an older one writes is refused"`
	GPU         *GPU              `json:"gpu" doc:"its devices; null: none"`
	Labels      map[string]string `json:"labels" doc:"the caller's labels"`
	EnvNames    []string          `json:"env_names" doc:"names of its environment variables"`
	CreatedAt   time.Time         `json:"created_at" doc:"when it was requested"`
	ExpiresAt   time.Time         `json:"expires_at" doc:"its deadline"`
	LastUsedAt  time.Time         `json:"last_used_at" doc:"end of its last use"`
	ClosedAt    *time.Time        `json:"closed_at" doc:"when it ended; null: still open"`
	TTLSeconds  int               `json:"ttl_seconds" doc:"life from its creation, or from the last PATCH"`
	IdleSeconds int               `json:"idle_seconds" doc:"life after the end of its last use; 0: no idle limit"`
	OnIdle      string            `json:"on_idle" doc:"what happens when it has been idle for idle_seconds" enum:"close,hibernate"`

	Usage []UseSample `json:"usage" doc:"what it used of late, the oldest first: at most 20 samples, about worker.reconcile_every apart"`
}

// UseSample is what a sandbox used at one time.
type UseSample struct {
	CPUs     float64 `json:"cpus" doc:"cores, a mean since the sample before"`
	MemoryMB int     `json:"memory_mb" doc:"MiB of memory, with files in the workspace and /tmp"`
}

// Resources are the limits of a sandbox.
type Resources struct {
	MemoryMB int     `json:"memory_mb" doc:"MiB of memory; files in the workspace and /tmp count"`
	CPUs     float64 `json:"cpus" doc:"cores"`
	PIDs     int     `json:"pids" doc:"processes and threads"`
	DiskMB   int     `json:"disk_mb" doc:"MiB of the workspace"`
}

// GPU is a set of devices.
type GPU struct {
	Count int    `json:"count" doc:"number of devices; 0: none"`
	Model string `json:"model,omitempty" doc:"model that the devices must have"`
}

// Created is the answer to a create: the new sandbox and the job that makes it.
type Created struct {
	Sandbox Sandbox `json:"sandbox" doc:"the new sandbox"`
	Job     Job     `json:"job" doc:"the job that creates it"`
}

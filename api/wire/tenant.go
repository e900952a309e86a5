package wire

import (
	"time"
)

// Quota is a quota of a tenant and how much of it is used.
type Quota struct {
	Name  string   `json:"name" doc:"name of the quota" enum:"max_sandboxes,max_memory_mb,max_cpus,max_gpus,max_running,max_queued,max_stored_mb,requests_per_minute,max_connections"`
	Limit *float64 `json:"limit" doc:"its value; null: no bound"`
	Used  float64  `json:"used" doc:"how much of it is used now"`
}

// Usage is what a tenant uses.
type Usage struct {
	Tenant string     `json:"tenant" doc:"name of the tenant"`
	Quotas []Quota    `json:"quotas" doc:"its quotas, with what is used of them now"`
	Days   []DayUsage `json:"days" doc:"what it has used, for each day in UTC with use, the oldest first"`
}

// DayUsage is what a tenant has used in one day.
type DayUsage struct {
	Day             string  `json:"day" doc:"the day, such as 2026-11-22"`
	CPUSeconds      float64 `json:"cpu_seconds" doc:"CPU time of its sandboxes, by the engine's counters"`
	MemoryGBSeconds float64 `json:"memory_gb_seconds" doc:"GiB of memory in use, times seconds"`
	GPUSeconds      float64 `json:"gpu_seconds" doc:"time for which it had GPUs, for each device"`
	SandboxSeconds  float64 `json:"sandbox_seconds" doc:"time that its sandboxes ran"`
	StoredGBSeconds float64 `json:"stored_gb_seconds" doc:"GiB of artifacts, times seconds"`
}

// Tenant is a tenant with its quotas.
type Tenant struct {
	Name   string             `json:"name" doc:"its name"`
	Own    map[string]float64 `json:"own_quotas" doc:"quotas that are not the farm's default, by name; -1: no bound"`
	Quotas []Quota            `json:"quotas" doc:"all quotas, with what is used of them now"`
	// Runtimes are empty for a tenant that may use all.
	Runtimes []string `json:"runtimes" doc:"OCI runtimes that its sandboxes may have, the default first; empty: those of the farm"`
	// AllowHosts are nil for a tenant that may reach all that the farm allows.
	AllowHosts *[]string `json:"allow_hosts" doc:"rules of the hosts that its sandboxes may reach at most, within the farm's; null: those of the farm; empty: none"`
}

// TenantRequest sets the quotas of a tenant, and the runtimes and hosts of its sandboxes. A field that is missing or null gets the farm's default; -1 means no bound.
type TenantRequest struct {
	MaxSandboxes      *int     `json:"max_sandboxes,omitempty" doc:"open sandboxes"`
	MaxMemoryMB       *int     `json:"max_memory_mb,omitempty" doc:"MiB of memory of open sandboxes, together"`
	MaxCPUs           *float64 `json:"max_cpus,omitempty" doc:"cores of open sandboxes, together"`
	MaxGPUs           *int     `json:"max_gpus,omitempty" doc:"GPUs of open sandboxes, together"`
	MaxRunning        *int     `json:"max_running,omitempty" doc:"jobs that run at once; more stay queued"`
	MaxQueued         *int     `json:"max_queued,omitempty" doc:"unfinished jobs"`
	MaxStoredMB       *int     `json:"max_stored_mb,omitempty" doc:"MiB of artifacts, together, 48 KiB more for each; files beyond it stay in the sandbox"`
	RequestsPerMinute *int     `json:"requests_per_minute,omitempty" doc:"API requests in a minute"`
	MaxConnections    *int     `json:"max_connections,omitempty" doc:"API requests that are answered at once"`

	Runtimes   *[]string `json:"runtimes,omitempty" doc:"OCI runtimes that its sandboxes may have, the default first; empty: those of the farm"`
	AllowHosts *[]string `json:"allow_hosts,omitempty" doc:"rules of the hosts that its sandboxes may reach at most, within the farm's; empty: none"`
}

// TenantChange changes some settings of a tenant in one step. Those that it does not name stay as they are.
type TenantChange struct {
	Set     TenantRequest `json:"set,omitzero" doc:"settings that get a value of their own; -1 means no bound"`
	Default []string      `json:"default,omitempty" doc:"names of settings that get the farm's default"`
}

// KeyRequest is the body of POST /v1/keys.
type KeyRequest struct {
	Tenant         string   `json:"tenant" doc:"tenant that owns what is created with the key: 1 to 64 letters, digits, dots, dashes and underscores, not only dots, and none of fleet, nodes, pool and room" required:"true"`
	Name           string   `json:"name,omitempty" doc:"free text, such as who has the key"`
	Scopes         []string `json:"scopes,omitempty" doc:"what the key may do: run, read, metrics, admin; default run"`
	ExpiresSeconds *int     `json:"expires_seconds,omitempty" doc:"seconds until the key expires, at least 1; default: never"`
}

// Key is an API key without the key itself, which cannot be read again.
type Key struct {
	ID         string     `json:"id" doc:"id of the key"`
	Tenant     string     `json:"tenant" doc:"tenant that owns what is created with the key"`
	Name       string     `json:"name" doc:"free text"`
	Scopes     []string   `json:"scopes" doc:"what the key may do: run, read, metrics, admin; empty for a key of the settings without scopes, which has run and metrics and sees the whole fleet"`
	Origin     string     `json:"origin" doc:"where the key was made: by this API, or in the farm's settings" enum:"api,settings"`
	CreatedAt  *time.Time `json:"created_at" doc:"when it was made; null for a key of the settings"`
	ExpiresAt  *time.Time `json:"expires_at" doc:"when it expires or has expired; null: never"`
	LastUsedAt *time.Time `json:"last_used_at" doc:"its last use, to about a minute; null: never used, or a key of the settings"`
}

// NewKey is the answer to POST /v1/keys: the only one that contains the key.
type NewKey struct {
	Key    Key    `json:"key" doc:"the record of the key"`
	Secret string `json:"secret" doc:"the key itself; it is shown only now"`
}

// AuditEntry says who asked the farm for what, and what came of it.
type AuditEntry struct {
	ID        string    `json:"id" doc:"id of the entry"`
	At        time.Time `json:"at" doc:"when it happened"`
	Tenant    string    `json:"tenant" doc:"tenant of the caller; empty: without a valid key"`
	KeyID     string    `json:"key_id" doc:"id of the caller's key; empty: none; local: the operator on the farm's machine"`
	Route     string    `json:"route" doc:"method and path template of the request"`
	Subject   string    `json:"subject" doc:"the id or tenant in the path, the key that was made, or the process that a tool started or ended; empty: none"`
	JobID     string    `json:"job_id" doc:"the job that was accepted, or canceled by a tool; empty: none"`
	SandboxID string    `json:"sandbox_id" doc:"the sandbox of that job or process, or of the link that a tool made; empty: none"`
	From      string    `json:"from" doc:"address of the caller; local: this machine, without the network"`
	Status    int       `json:"status" doc:"status of the answer; 202 for an accepted job"`
	RequestID string    `json:"request_id" doc:"id of the request, found in the server's log"`
	Missed    int       `json:"missed" doc:"entries before this one that could not be kept; they are in the server's log, except for floods of requests without a key"`
}

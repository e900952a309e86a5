package wire

import (
	"encoding/hex"
	"time"
)

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
	OneShot     bool              `json:"one_shot" doc:"it was made by a run, and is closed with it"`

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

// Ports is the answer of GET /v1/sandboxes/{id}/ports.
type Ports struct {
	Items []Port `json:"items" doc:"ports on which programs of the sandbox listen, by number"`
}

// Port is a port on which a program of a sandbox listens.
type Port struct {
	Port    int    `json:"port" doc:"its number"`
	Address string `json:"address" doc:"address on which the program listens; 0.0.0.0 and :: are all of the sandbox"`
	PID     *int   `json:"pid" doc:"process that listens; null: it is not known"`
	Command string `json:"command" doc:"its command, shortened; empty: it is not known"`
}

// PortLinkRequest is the body of POST /v1/sandboxes/{id}/port-links.
type PortLinkRequest struct {
	Port           int  `json:"port" doc:"port of the sandbox" required:"true"`
	ExpiresSeconds *int `json:"expires_seconds,omitempty" doc:"how long the link works, 1 to 604800; default 3600"`
	PathStyle      bool `json:"path_style,omitempty" doc:"make the link a path below the API's own address (/p/…), for programs that do not resolve the host of a port. Its pages have an opaque origin; default false"`
}

// ThisPortLinkRequest is the body of POST /v1/sandboxes/{id}/ports/{port}/link, which may be left out.
type ThisPortLinkRequest struct {
	ExpiresSeconds *int `json:"expires_seconds,omitempty" doc:"how long the link works, 1 to 604800; default 3600"`
	PathStyle      bool `json:"path_style,omitempty" doc:"make the link a path below the API's own address (/p/…), for programs that do not resolve the host of a port. Its pages have an opaque origin; default false"`
}

// PortLink is an address of a port that needs no key.
type PortLink struct {
	URL       string    `json:"url" doc:"address that leads to the port, for whoever has it"`
	Port      int       `json:"port" doc:"the port"`
	ExpiresAt time.Time `json:"expires_at" doc:"when it stops working"`
}

// MaxForwardBytes is the longest message of GET …/tcp/{port}.
const MaxForwardBytes = 64 << 10

// EgressEntry is one connection, or one request over plain HTTP, that a sandbox of the network allowlist asked for.
type EgressEntry struct {
	ID         string    `json:"id" doc:"id of the entry; send it as after to read what follows"`
	At         time.Time `json:"at" doc:"when the connection was asked for"`
	Host       string    `json:"host" doc:"host that was asked for; code in the sandbox chooses it"`
	Port       int       `json:"port" doc:"its port; 0: none, or not a valid one"`
	Method     string    `json:"method" doc:"CONNECT for HTTPS and other TLS, or the method of a request over plain HTTP"`
	Verdict    string    `json:"verdict" doc:"allowed, denied by a rule or a limit, or failed: allowed but not reached, or broken" enum:"allowed,denied,failed"`
	Reason     string    `json:"reason" doc:"why it was denied or failed; empty: it was allowed"`
	Sent       int64     `json:"sent" doc:"bytes to the host"`
	Received   int64     `json:"received" doc:"bytes from the host"`
	DurationMS int64     `json:"duration_ms" doc:"how long it lasted"`
	Secrets    []string  `json:"secrets" doc:"names of the secrets that were added to the request"`
	Missed     int       `json:"missed" doc:"connections before this one that are not in the log, because there were too many at once"`
}

// E2BPrefix begins the only form of keys that the SDKs of E2B took before November 2026.
const E2BPrefix = "e2b_"

// E2BKey is an API key in that form: the same key, its bytes in hex. The farm takes both.
func E2BKey(secret string) string { return E2BPrefix + hex.EncodeToString([]byte(secret)) }

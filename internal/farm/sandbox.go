package farm

import "time"

// Network is what a sandbox can reach. It has no interface other than loopback: what it reaches, it reaches through its worker.
type Network string

// The network modes of the contract.
const (
	NetworkNone      Network = "none"
	NetworkPackages  Network = "packages"  // package indexes only
	NetworkAllowlist Network = "allowlist" // package indexes, and the hosts of SandboxSpec.AllowHosts
)

// Networks lists every mode.
func Networks() []Network {
	return []Network{NetworkNone, NetworkPackages, NetworkAllowlist}
}

// Resources is what a sandbox may use. Zero fields mean the farm's default (see Limits).
type Resources struct {
	MemoryMB int     `json:"memory_mb"` // MiB of memory, swap included; files in /workspace and /tmp count
	CPUs     float64 `json:"cpus"`      // cores
	PIDs     int     `json:"pids"`      // processes and threads
	DiskMB   int     `json:"disk_mb"`   // MiB of the workspace; /tmp has the same size, and the home directory, where packages go, four times that
}

// GPU asks for devices. Nil means none.
type GPU struct {
	Count int    `json:"count"`
	Model string `json:"model,omitempty"`
}

// SandboxSpec is what a caller requested, with the defaults filled in.
type SandboxSpec struct {
	Name        string            `json:"name,omitempty"`
	Image       string            `json:"image"`
	Network     Network           `json:"network"`
	AllowHosts  []string          `json:"allow_hosts,omitempty"` // rules of NetworkAllowlist, as HostRule writes them; it may change
	Secrets     []Secret          `json:"secrets,omitempty"`     // of NetworkAllowlist, without their values
	Authority   []byte            `json:"authority,omitempty"`   // certificate that the sandbox trusts for the hosts of Secrets (X.509, DER)
	Resources   Resources         `json:"resources"`
	GPU         *GPU              `json:"gpu,omitempty"`
	Runtime     string            `json:"runtime,omitempty"` // OCI runtime that it must have; empty: the default of its node
	Env         map[string]string `json:"env,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	TTLSeconds  int               `json:"ttl_seconds"`  // lifetime from creation, or from the last PATCH
	IdleSeconds int               `json:"idle_seconds"` // lifetime after the last use; 0: no idle limit
	OnIdle      OnIdle            `json:"on_idle,omitempty"`
}

// Sandbox is the record of a sandbox. It is the source of truth; the container follows it.
type Sandbox struct {
	ID     string       `json:"id"`
	Tenant string       `json:"tenant"`
	State  SandboxState `json:"state"`
	Reason string       `json:"reason,omitempty"` // why it failed, was lost, or ended, in a sentence

	Spec SandboxSpec `json:"spec"`

	Node      string `json:"node,omitempty"`      // the engine of its container; empty until one is chosen
	Container string `json:"container,omitempty"` // the engine's id of the container
	Runtime   string `json:"runtime,omitempty"`   // OCI runtime of the container; empty until a node has begun to start it

	CreatedAt  time.Time `json:"created_at"`
	ReadyAt    time.Time `json:"ready_at,omitzero"`
	LastUsedAt time.Time `json:"last_used_at"` // end of the last use, or its creation
	ExpiresAt  time.Time `json:"expires_at"`   // absolute deadline; it may end sooner if it is idle
	ClosedAt   time.Time `json:"closed_at,omitzero"`

	// Generation is 1 at first, and rises each time that its creation leaves a node and begins anew. It is the sandbox's fence: a write about
	// the sandbox by an older generation is refused, and a container of another generation is not the sandbox's.
	Generation int `json:"generation,omitempty"`

	OneShot bool `json:"one_shot,omitempty"` // made by a run job and closed with it
	Pooled  bool `json:"pooled,omitempty"`   // claimed a member of the warm pool, and has its id
	Expired bool `json:"expired,omitempty"`  // it closes since its deadline has passed, so it ends as expired

	Recent []UseSample `json:"-"` // what it used, the oldest first, at most MaxUseSamples; the store keeps it
}

// MaxUseSamples is how many samples of what a sandbox uses are kept, the newest.
const MaxUseSamples = 20

// UseSample is what a sandbox used at one time.
type UseSample struct {
	CPUs     float64 // cores, a mean since the sample before
	MemoryMB int     // MiB, with files in its writable places
}

// Ref names the sandbox.
func (s *Sandbox) Ref() Ref { return Ref{Tenant: s.Tenant, ID: s.ID} }

// Deadline is when the sandbox ends if nothing more happens: the earlier of its absolute and its idle deadline. A busy or hibernated
// sandbox has no idle deadline.
func (s *Sandbox) Deadline() time.Time {
	if s.Spec.IdleSeconds <= 0 || s.State == SandboxBusy || s.State == SandboxHibernated {
		return s.ExpiresAt
	}
	idle := s.LastUsedAt.Add(time.Duration(s.Spec.IdleSeconds) * time.Second)
	if idle.Before(s.ExpiresAt) {
		return idle
	}
	return s.ExpiresAt
}

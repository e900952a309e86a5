package farm

import (
	"errors"
	"hash/fnv"
	"regexp"
	"strconv"
	"strings"
	"time"
)

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

// MaxRuntimes bounds the OCI runtimes that one setting or one tenant names.
const MaxRuntimes = 16

// runtimeName is the form of an OCI runtime's name. The engine allows more; these fit into settings, flags and keys as they are.
var runtimeName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// CheckRuntime refuses what cannot be the name of an OCI runtime.
func CheckRuntime(name string) error {
	if !runtimeName.MatchString(name) {
		return Invalidf("%q is not the name of a runtime, such as runc or runsc: use letters, digits, dots, dashes and underscores, at most 63", Shorten(name))
	}
	return nil
}

// CheckRuntimes refuses a list of OCI runtimes that is too long, or has a name twice or one that cannot be.
func CheckRuntimes(names []string) error {
	if len(names) > MaxRuntimes {
		return Invalidf("there are %d runtimes; at most %d are allowed", len(names), MaxRuntimes)
	}
	seen := map[string]bool{}
	for _, name := range names {
		if err := CheckRuntime(name); err != nil {
			return err
		}
		if seen[name] {
			return Invalidf("the runtime %s is named twice", name)
		}
		seen[name] = true
	}
	return nil
}

// GVisor reports whether an OCI runtime is gVisor, by its name. Workers refuse to start with one whose name hides that (Engine.CheckRuntimes).
func GVisor(runtime string) bool {
	return strings.Contains(runtime, "runsc") || strings.Contains(runtime, "gvisor")
}

// OwnKernel reports whether an OCI runtime gives its containers a kernel of their own, by its name: gVisor and Kata do. Their sockets, file locks
// and processes are not the host's, and they do not reach its GPUs.
func OwnKernel(runtime string) bool { return GVisor(runtime) || strings.Contains(runtime, "kata") }

// CannotHibernate is the refusal to hibernate a sandbox.
func CannotHibernate(s *Sandbox) *Error {
	switch {
	case s.Spec.GPU != nil:
		return Conflictf("Sandbox %s has a GPU, whose memory cannot be stored, so it cannot hibernate. Close it, or let it run.", s.ID)
	case s.Runtime != "" && !OwnKernel(s.Runtime):
		return Conflictf("Sandbox %s runs under %s, which cannot store a running sandbox. Create one with the runtime runsc (gVisor) on a Docker engine to hibernate it (a Kubernetes cluster cannot); the operator enables it: engine.runtime = \"runsc\" (docs/operations.md).", s.ID, s.Runtime)
	default:
		return Conflictf("The node of sandbox %s makes no checkpoints, so it cannot hibernate: they need gVisor (runsc) and a Docker engine with experimental features (`sandfarm doctor`); a Kubernetes cluster makes none. Close it, or let it run.", s.ID)
	}
}

// OnIdle is what happens to a sandbox that has been idle for its IdleSeconds; the zero value is OnIdleClose.
type OnIdle string

// The values of OnIdle.
const (
	OnIdleClose     OnIdle = ""
	OnIdleHibernate OnIdle = "hibernate"
)

// SleepsAt reports whether a sandbox whose deadline has passed hibernates instead of being closed: only its idle limit is over.
func (s *Sandbox) SleepsAt(now time.Time) bool {
	return s.Spec.OnIdle == OnIdleHibernate && s.State == SandboxReady && now.Before(s.ExpiresAt)
}

const (
	// LinkSeconds is how long a link to a port works if its request does not say.
	LinkSeconds = 3600
	// MaxLinkSeconds is the longest that one may work.
	MaxLinkSeconds = 7 * 24 * 3600
	// EgressPort is where programs of a sandbox with a network reach the package indexes and the proxy.
	EgressPort = 3141
)

// Port is a port on which a program of a sandbox listens, where the farm reaches it.
type Port struct {
	Number  int    `json:"number"`
	Address string `json:"address"`           // on which it listens, such as 127.0.0.1 or ::
	PID     int    `json:"pid,omitempty"`     // of a process that has it; 0: not known
	Command string `json:"command,omitempty"` // of that process, shortened
}

// ParsePort reads the number of a port, 1 to 65535: digits without a sign or a leading zero. CodeInvalid otherwise.
func ParsePort(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 || strconv.FormatUint(n, 10) != text {
		return 0, Invalidf("%q is not a port: it is a number from 1 to 65535", Shorten(text))
	}
	return uint16(n), nil
}

// ErrOwnPort refuses a port on which the farm itself listens: what is there serves programs of the sandbox only.
func ErrOwnPort(port uint16) error {
	return Invalidf("Port %d of the sandbox is the farm's own and cannot be reached from outside.", port)
}

// Directories of every sandbox, beside Workspace, and sizes of its writable ones.
const (
	HomeDir    = "/home/sandbox" // of user code
	RunDir     = "/run/sandfarm" // the agent's own
	AgentDir   = "/sandfarm"     // the agent and its programs, read-only
	HomeFactor = 4               // the home directory has so many times Resources.DiskMB: packages are installed there, and TensorFlow has 2 GB
	RunMB      = 64              // of RunDir: sockets, and code that runs as a fresh process (10 MiB each at most)
	GPUShmMB   = 1024            // of /dev/shm, if it has GPUs: loaders of training data and NCCL pass tensors through it
)

// OrDefault replaces zero fields by the farm's defaults.
func (r Resources) OrDefault() Resources {
	limits := DefaultLimits()
	if r.MemoryMB <= 0 {
		r.MemoryMB = limits.Memory.Default
	}
	if r.CPUs <= 0 {
		r.CPUs = limits.CPUs.Default
	}
	if r.PIDs <= 0 {
		r.PIDs = limits.PIDs.Default
	}
	if r.DiskMB <= 0 {
		r.DiskMB = limits.Disk.Default
	}
	return r
}

// OnHost is what a sandbox gets of a host with so many cores (0: not known): no more of them than there are.
func (r Resources) OnHost(cores float64) Resources {
	if cores > 0 {
		r.CPUs = min(r.CPUs, cores)
	}
	return r
}

// The user ids of sandboxes, FirstUID to FirstUID+UIDs-1. The kernel has limits for each user and all its containers together: pipes,
// watches of files, queued signals. So no two sandboxes of an engine have the same user.
const (
	FirstUID = 20_000
	UIDs     = 40_000
)

// PreferredUID is the uid that a sandbox gets if it is free.
func PreferredUID(sandboxID string) int {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(sandboxID))
	return FirstUID + int(hash.Sum32()%UIDs)
}

// NextUID returns the first uid after one that is not used. After the last comes the first. CodeUnavailable if all are.
func NextUID(after int, used map[int]bool) (int, error) {
	for i := 1; i <= UIDs; i++ {
		if uid := FirstUID + (after-FirstUID+i)%UIDs; !used[uid] {
			return uid, nil
		}
	}
	return 0, Errorf(CodeUnavailable, "all %d user ids of sandboxes are in use on this engine", UIDs)
}

// What a worker and its engine say to each other. An engine runs the container of each sandbox, whose PID 1 is the agent. Not all engines are
// Docker: none of these types is about how an engine does that.

// ContainerSpec describes a sandbox's container. The engine isolates it, gives it a user of its own, and fixes everything else.
type ContainerSpec struct {
	SandboxID  string // required
	Generation int    // of the sandbox; 0 is the first
	Tenant     string // its owner; empty: it has none yet
	Node       string
	Deadline   time.Time         // when it must be gone; zero: none
	Labels     map[string]string // kept with the container, where code in it cannot read them

	Image   string            // required
	Agent   string            // what EnsureAgent returned for its runtime; empty: none
	Command []string          // what runs as PID 1; required
	Env     map[string]string // environment of PID 1

	Resources Resources // zero fields take the farm's defaults; more CPUs than the engine has are reduced to what it has
	GPUs      []string  // ids of its devices, which no other container has; nil: none
	GPU       *GPU      // devices that an engine which places containers itself finds for it, in place of GPUs; nil: none
	Runtime   string    // its isolation, such as "runsc"; empty: the engine's default
}

// Container is what an engine knows of a sandbox's container. Fields marked (inspect) are zero in a list.
type Container struct {
	ID         string // of the engine
	SandboxID  string
	Generation int // from 1
	Tenant     string
	Node       string
	Deadline   time.Time // zero: none
	Labels     map[string]string
	GPUs       []string

	Running   bool
	OOMKilled bool      // (inspect) the memory limit killed a process in it
	ExitCode  int       // (inspect) of PID 1, once it is not running
	Reason    string    // (inspect) why the engine ended it of its own accord; empty if it did not
	Resources Resources // (inspect) its limits; DiskMB is not known
	Runtime   string    // (inspect)
}

// ContainerUsage is what an engine has counted for a container.
type ContainerUsage struct {
	Container string        // its id
	CPU       time.Duration // since it started
	Memory    int64         // bytes in use now, without file pages that the kernel can drop
}

// EngineIdentity is what a worker learns from its engine once.
type EngineIdentity struct {
	Node       string   // id of the engine as a node, which all workers and restarts agree on
	Arch       string   // processor, as Go names it
	Runtimes   []string // those that sandboxes may have, the default first
	Hibernates []string // those of Runtimes whose containers can be checkpointed
}

// AgentProgram is an executable that sandboxes get: the agent, or what it calls.
type AgentProgram struct {
	Name string
	Data []byte
}

// ErrNewer says that the engine has the container of a later generation of a sandbox.
var ErrNewer = errors.New("the engine has a container of a later generation")

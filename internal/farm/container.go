package farm

import (
	"errors"
	"time"
)

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

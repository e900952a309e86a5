package engine

import (
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Spec describes a sandbox's container. The hardened profile fixes everything else.
type Spec struct {
	SandboxID string // required; the container's name is derived from it
	Tenant    string
	Node      string
	Deadline  time.Time // when the container must be gone; kept as a label
	Labels    map[string]string

	Image       string            // required
	Command     []string          // what runs as PID 1; required
	Env         map[string]string // environment of PID 1
	UID         int               // user and group id of everything in it; 0 is refused
	UniqueUID   bool              // if another container of the engine has UID, Create takes a free one of the farm's user ids
	AgentVolume string            // name of the volume with the agent, mounted read-only; empty: none
	AgentMount  string            // its mount point, such as "/sandfarm"

	Resources farm.Resources // zero fields take the farm's defaults; more CPUs than the engine has are reduced to what it has

	GPUs []string // ids of its devices, which no other container has; nil: none
	CDI  []string // their CDI names; nil: the nvidia driver takes their ids

	Runtime string // OCI runtime; empty: the Engine's
}

// Mount points and sizes of the writable places. All are tmpfs, so all count against the sandbox's memory.
const (
	homeDir    = "/home/sandbox" // of user code
	runDir     = "/run/sandfarm" // the agent's own
	workInodes = 200_000         // files and directories in the workspace: 10 000 results fit many times over
	tmpInodes  = 50_000
	homeInodes = 100_000 // caches of tools are many small files
	homeFactor = 4       // packages are installed into the home directory, and TensorFlow has 2 GB
	runMB      = 64      // connection files, sockets, and code that runs as a fresh process (10 MiB each at most)
	runInodes  = 4_096
	shmMB      = 64 // Docker's default
	shmInodes  = 4_096
	gpuShmMB   = 1024 // loaders of training data and NCCL pass tensors through it
)

// resources returns the spec's resources with defaults for zero fields, and at most as many cores as the engine has (0: unknown).
func (s *Spec) resources(engineCPUs int) farm.Resources {
	limits, r := farm.DefaultLimits(), s.Resources
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
	if engineCPUs > 0 && r.CPUs > float64(engineCPUs) {
		r.CPUs = float64(engineCPUs)
	}
	return r
}

// validate checks the fields that the profile relies on.
func (s *Spec) validate() error {
	switch {
	case s.SandboxID == "":
		return farm.Invalidf("a sandbox's container needs the sandbox's id")
	case s.Image == "":
		return farm.Invalidf("a sandbox's container needs an image")
	case len(s.Command) == 0:
		return farm.Invalidf("a sandbox's container needs a command")
	case s.UID <= 0:
		return farm.Invalidf("a sandbox never runs as root: its uid is %d", s.UID)
	case len(s.CDI) > 0 && len(s.CDI) != len(s.GPUs):
		return farm.Invalidf("%d GPUs need as many CDI names, not %d", len(s.GPUs), len(s.CDI))
	case (s.AgentVolume == "") != (s.AgentMount == ""):
		return farm.Invalidf("the agent's volume and its mount point must be set together")
	}
	return nil
}

package node

import (
	"context"
	"io"
	"net"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Engine is what a worker needs of the engine that it is attached to. The suite enginetest.Conformance states it; whatever passes it can take
// the place of Docker. Containers are named by the id that Create returned, or by Name. Methods are safe for concurrent use, and each bounds its
// own time. An engine that does not answer is farm.CodeUnavailable; what it does not have is farm.CodeNotFound.
//
// There is no watch: a worker notices that a container has ended by the stream to its agent, which breaks, and asks Inspect why.
type Engine interface {
	// Ping asks whether the engine answers.
	Ping(ctx context.Context) error
	// Identify checks that sandboxes can run, with the default runtime and these, and describes the engine.
	Identify(ctx context.Context, runtimes ...string) (farm.EngineIdentity, error)
	// Capacity is all memory and cores that the engine has for sandboxes and for whatever else is there.
	Capacity(ctx context.Context) (farm.Capacity, error)
	// Images lists the images for sandboxes.
	Images(ctx context.Context) ([]farm.Image, error)
	// EnsureAgent makes a version of the agent and of its programs available to sandboxes with a runtime, and returns the name for
	// farm.ContainerSpec.Agent. It calls programs only if that was not done before. It may need an image.
	EnsureAgent(ctx context.Context, version, runtime string, programs func(context.Context) ([]farm.AgentProgram, error), image string) (string, error)

	// Name is what a sandbox's container can always be named by.
	Name(sandboxID string) string
	// Create makes a container without running anything in it, and returns its id. The second Create for a generation of a sandbox returns the
	// same container, that of a later one replaces it, and that of an earlier one is farm.ErrNewer.
	Create(ctx context.Context, spec farm.ContainerSpec) (string, error)
	// Start runs a container that Create made. It does nothing if the container runs. An engine that places containers itself waits for room;
	// farm.CodeExhausted with the reason if there was none until the end of ctx.
	Start(ctx context.Context, id string) error
	// Update changes the limits of a running container; runtime is its own. farm.CodeConflict if the runtime or the machine cannot do that.
	Update(ctx context.Context, id, runtime string, limits farm.Resources) error
	// Remove ends a container and removes it. Then it no longer exists. One that is gone is no error.
	Remove(ctx context.Context, id string) error
	// Inspect describes a container.
	Inspect(ctx context.Context, id string) (farm.Container, error)
	// List describes the containers of all sandboxes of this farm, running or not. What another process did a moment ago it may miss.
	List(ctx context.Context) ([]farm.Container, error)
	// DialSocket opens a stream to a socket in a container: straight, or through a command there that connects to it, run as a user. The stream
	// may be a PortDialer.
	DialSocket(ctx context.Context, id, socket string, command []string, user string) (io.ReadWriteCloser, error)

	// Note keeps the owner and labels of a sandbox whose container was made before it had an owner. It does not change an existing note.
	Note(ctx context.Context, sandboxID, tenant string, labels map[string]string) error
	// Noted returns a container with the owner and the labels of its note, in place of its own.
	Noted(ctx context.Context, c farm.Container) (farm.Container, error)
	// Notes lists the sandboxes with a note, as List does. It may outlive the container.
	Notes(ctx context.Context) ([]string, error)
	// RemoveNote removes a note. One that is gone is no error.
	RemoveNote(ctx context.Context, sandboxID string) error
}

// Counters are what an Engine has if it counts what containers use. Without them, the agents of sandboxes are asked.
type Counters interface {
	// Usage reads the counters of a container; ok is false if it does not run.
	Usage(ctx context.Context, id string) (u farm.ContainerUsage, ok bool, err error)
}

// Preloader is what an Engine has if all sandboxes of an image share its files in the memory of the host. The kernel charges each page to the sandbox that reads
// it first, and drops it with what that may use: one with little memory would read the disk without end.
type Preloader interface {
	// Preload reads all files of an image, outside of the limits of sandboxes.
	Preload(ctx context.Context, image string) error
}

// PortDialer is a stream of DialSocket that also reaches the ports of the container. Without it, ports are reached through the agent.
type PortDialer interface {
	DialTCP(ctx context.Context, address string) (*net.TCPConn, error)
}

// Checkpoints are what an Engine has if sandboxes can hibernate in it (farm.EngineIdentity.Hibernates). A checkpoint is the memory of a container
// on disk. A container has one at most, which is removed with it.
type Checkpoints interface {
	// Checkpoint stores a running container and ends it. After an error the container may run, or have ended.
	Checkpoint(ctx context.Context, id string) error
	// HasCheckpoint reports whether a container has a checkpoint, complete or not.
	HasCheckpoint(ctx context.Context, id string) (bool, error)
	// Resume runs a container from its checkpoint, which stays. It does nothing if the container runs. farm.CodeConflict if it has none.
	Resume(ctx context.Context, id string) error
	// RemoveCheckpoint removes the checkpoint of a container. One that is gone is no error.
	RemoveCheckpoint(ctx context.Context, id string) error
}

// noCheckpoints are those of an engine that makes none.
type noCheckpoints struct{}

var errNoCheckpoints = farm.Conflictf("the engine makes no checkpoints")

func (noCheckpoints) Checkpoint(context.Context, string) error            { return errNoCheckpoints }
func (noCheckpoints) HasCheckpoint(context.Context, string) (bool, error) { return false, nil }
func (noCheckpoints) Resume(context.Context, string) error                { return errNoCheckpoints }
func (noCheckpoints) RemoveCheckpoint(context.Context, string) error      { return nil }

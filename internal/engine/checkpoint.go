package engine

import (
	"cmp"
	"context"
	"path"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/checkpoint"
	"github.com/docker/docker/api/types/container"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// A checkpoint is the memory of a container on disk: its processes, and its tmpfs with all files. The engine keeps it with the container and
// removes it with the container; its API cannot move it to another place. A container has one at most, of a fixed name.

// CheckpointName is the name of every checkpoint.
const CheckpointName = "sandfarm"

// CheckpointRuntime is the name of the program that an engine must have registered as the runtime of containers with checkpoints: runsc, and it
// removes the copy of the checkpoint that containerd leaves on the host at each start from it (deploy/gvisor).
const CheckpointRuntime = "sandfarm-runsc"

const (
	// checkpointTimeout covers writing and reading some GiB on a slow disk; a small sandbox takes under a second.
	checkpointTimeout = 5 * time.Minute
	endEvery          = 20 * time.Millisecond
	// Making a checkpoint leaves a copy of it in containerd until its garbage collection, about a second later. A start whose upload is equal to that
	// copy is refused until then.
	uploadTimeout = 30 * time.Second
	uploadPause   = 500 * time.Millisecond
)

// CheckCheckpoints refuses, with CodeConflict and what to do, when the engine cannot checkpoint containers that have an OCI runtime; empty: the
// Engine's. Only gVisor's can be: runc needs CRIU, which this package does not support. Checkpoints are an experimental feature of the engine.
func (e *Engine) CheckCheckpoints(ctx context.Context, runtime string) error {
	got, err := e.systemInfo(ctx)
	if err != nil {
		return err
	}
	name := cmp.Or(runtime, e.runtime, got.DefaultRuntime)
	switch {
	case !farm.GVisor(name):
		return farm.Conflictf("the runtime %s makes no checkpoints; gVisor's runsc does", name)
	case path.Base(got.Runtimes[name].Path) != CheckpointRuntime:
		return farm.Conflictf("each resume would leave a copy of the sandbox's memory in the host's /tmp: register the runtime %s with the program %s (`make gvisor`)", name, CheckpointRuntime)
	case !got.ExperimentalBuild:
		return errNotExperimental
	}
	return nil
}

var errNotExperimental = farm.Conflictf("checkpoints are an experimental feature of the engine, and it is off: set \"experimental\": true in its daemon.json, and restart it")

// Checkpoint writes the memory of a running container to disk and ends the container. An older checkpoint of it is replaced. After an error
// the caller inspects what became of the container: it may run, or have ended. CodeNotFound when it is gone, CodeConflict when it
// does not run or the engine cannot checkpoint it.
func (e *Engine) Checkpoint(ctx context.Context, id string) error {
	c, err := e.Inspect(ctx, id)
	if err != nil {
		return err
	}
	if !c.Running {
		return farm.Conflictf("the container does not run, so it cannot be checkpointed")
	}
	if err := e.RemoveCheckpoint(ctx, id); err != nil {
		return err
	}
	return e.call(ctx, checkpointTimeout, "checkpoint container", func(ctx context.Context) error {
		if err := e.cli.CheckpointCreate(ctx, id, checkpointOptions()); err != nil {
			return checkpointProblem(err)
		}
		return e.awaitEnd(ctx, id)
	})
}

// awaitEnd waits until a container does not run. The engine answers before it has noticed the end of a container that it checkpoints.
func (e *Engine) awaitEnd(ctx context.Context, id string) error {
	tick := time.NewTicker(endEvery)
	defer tick.Stop()
	for {
		got, err := e.cli.ContainerInspect(ctx, id)
		if err != nil {
			return err
		}
		if got.State != nil && !got.State.Running {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// checkpointOptions describe the checkpoint that Checkpoint makes.
func checkpointOptions() checkpoint.CreateOptions {
	return checkpoint.CreateOptions{CheckpointID: CheckpointName, Exit: true}
}

// checkpointProblem gives what the engine cannot do a code.
func checkpointProblem(err error) error {
	switch {
	case cerrdefs.IsNotImplemented(err):
		return errNotExperimental
	case err != nil && strings.Contains(err.Error(), "CRIU"):
		return farm.Wrap(err, farm.CodeConflict, "the container's runtime makes no checkpoints; gVisor's runsc does")
	}
	return err
}

// Resume starts a container from its checkpoint, which stays. It does nothing if the container runs. A start that fails leaves container and
// checkpoint as they are, so it may be repeated. CodeNotFound when the container is gone, CodeConflict when it has no checkpoint.
func (e *Engine) Resume(ctx context.Context, id string) error {
	has, err := e.HasCheckpoint(ctx, id)
	if err != nil {
		return err
	}
	if !has {
		return farm.Conflictf("the container has no checkpoint")
	}
	ctx, done := context.WithTimeout(ctx, checkpointTimeout)
	defer done()
	for timeout := time.Now().Add(uploadTimeout); ; {
		err := e.call(ctx, checkpointTimeout, "resume container", func(ctx context.Context) error {
			return e.cli.ContainerStart(ctx, id, container.StartOptions{CheckpointID: CheckpointName})
		})
		if err == nil || !uploadedAlready(err) || time.Now().After(timeout) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(uploadPause):
		}
	}
}

// uploadedAlready reports whether a start failed because containerd still has its copy from making the checkpoint.
func uploadedAlready(err error) bool {
	return strings.Contains(err.Error(), "failed to upload checkpoint") && strings.Contains(err.Error(), "already exists")
}

// HasCheckpoint reports whether a container has a checkpoint, complete or not; false from an engine that makes none. CodeNotFound when
// the container is gone.
func (e *Engine) HasCheckpoint(ctx context.Context, id string) (bool, error) {
	has := false
	err := e.call(ctx, readTimeout, "list checkpoints", func(ctx context.Context) error {
		list, err := e.cli.CheckpointList(ctx, id, checkpoint.ListOptions{})
		for _, one := range list {
			has = has || one.Name == CheckpointName
		}
		if cerrdefs.IsNotImplemented(err) {
			return nil
		}
		return err
	})
	return has, err
}

// RemoveCheckpoint removes the checkpoint of a container. A missing one is not an error. CodeNotFound when the container is gone.
func (e *Engine) RemoveCheckpoint(ctx context.Context, id string) error {
	has, err := e.HasCheckpoint(ctx, id)
	if err != nil || !has {
		return err
	}
	return e.call(ctx, removeTimeout, "remove checkpoint", func(ctx context.Context) error {
		return e.cli.CheckpointDelete(ctx, id, checkpoint.DeleteOptions{CheckpointID: CheckpointName})
	})
}

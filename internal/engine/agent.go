package engine

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"

	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// fillMount is where sandboxes have the volume. While it is filled it is one level deeper, so that an archive can set the mode of its root.
	fillMount  = farm.AgentDir
	fillVolume = "volume"

	// fillStale is how long another process's fill may last before it counts as dead. A fill takes well under a second. A fill that is
	// overtaken while its process lives fails and starts again.
	fillStale = 15 * time.Second
	fillPoll  = 100 * time.Millisecond
)

// executeSuffix ends the names of volumes whose programs can only be executed.
const executeSuffix = "-execute"

// errFillBusy means that another process fills the volume.
var errFillBusy = errors.New("another fill is in progress")

// Access is what sandboxes may do with the programs of an agent's volume.
type Access int

// Sandboxes of one kernel share a volume. What they could open, they could lock and watch, and so signal to each other. But gVisor executes only
// what its user may read; its locks and watches do not leave the sandbox.
const (
	Execute     Access = iota // for sandboxes on the host's kernel
	ReadExecute               // for sandboxes with a kernel of their own
)

// accessFor is what sandboxes with an OCI runtime need; "" is the engine's default runtime, which must not be gVisor.
func accessFor(runtime string) Access {
	if farm.OwnKernel(runtime) {
		return ReadExecute
	}
	return Execute
}

// mode is that of the programs, and of the root of their volume.
func (a Access) mode() int64 {
	if a == ReadExecute {
		return 0o555
	}
	return 0o111
}

// EnsureAgent returns the name of the volume with this version of the agent and other programs, for sandboxes with an OCI runtime. It calls
// programs and fills the volume unless that was done before. image is any image of the engine: a container is created from it and never started. Concurrent
// processes fill the volume once, and an interrupted fill is repeated.
func (e *Engine) EnsureAgent(ctx context.Context, version, runtime string, programs func(context.Context) ([]farm.AgentProgram, error), image string) (string, error) {
	e.fill.Lock()
	defer e.fill.Unlock()
	name, access := e.namespace+"-agent-"+version, accessFor(runtime)
	if access == Execute {
		name += executeSuffix
	}
	labels, err := e.ensureVolume(ctx, name, map[string]string{LabelRole: RoleAgent, LabelFill: farm.NewID("")})
	if err != nil {
		return "", fmt.Errorf("ensure agent volume: %w", err)
	}
	mark := labels[LabelFill]
	var files []farm.AgentProgram // requested only when needed, since they may have to be downloaded
	var other string              // the fill of another process
	var since time.Time
	for {
		complete, err := e.filled(ctx, name, mark)
		if err != nil || complete {
			return name, err
		}
		if files == nil {
			if files, err = programs(ctx); err != nil {
				return "", fmt.Errorf("get the programs of the agent volume: %w", err)
			}
		}
		switch err := e.fillAgent(ctx, name, mark, files, access, image); {
		case err == nil:
			continue
		case !errors.Is(err, errFillBusy):
			return "", fmt.Errorf("fill agent volume: %w", err)
		}
		fill, err := e.Inspect(ctx, fillName(name))
		switch {
		case farm.CodeOf(err) == farm.CodeNotFound: // just done
		case err != nil:
			return "", fmt.Errorf("await other fill: %w", err)
		case fill.ID != other:
			other, since = fill.ID, time.Now()
		case time.Since(since) > fillStale:
			if err := e.Remove(ctx, fill.ID); err != nil {
				return "", fmt.Errorf("remove dead fill: %w", err)
			}
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("await other fill: %w", ctx.Err())
		case <-time.After(fillPoll):
		}
	}
}

// fillName is the name of the container that fills a volume. Only one container can have the name, so it is a lock.
func fillName(volume string) string { return volume + "-fill" }

// noteName is the name of the volume which says that a fill is complete. It is a volume of its own because the labels of a volume cannot
// be changed.
func noteName(volume string) string { return volume + "-complete" }

// filled reports whether the fill of exactly this volume, not of an earlier one of its name, is complete.
func (e *Engine) filled(ctx context.Context, name, mark string) (bool, error) {
	labels, err := e.volumeLabels(ctx, noteName(name))
	if farm.CodeOf(err) == farm.CodeNotFound {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read note of fill: %w", err)
	}
	return labels[LabelFill] == mark, nil
}

// fillAgent copies the agent into the volume and marks the fill as complete; errFillBusy when another process fills it.
func (e *Engine) fillAgent(ctx context.Context, name, mark string, files []farm.AgentProgram, access Access, image string) (err error) {
	id, err := e.createHelper(ctx, fillName(name), e.fillHelper(image, name))
	if cerrdefs.IsConflict(err) {
		return errFillBusy
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Remove(context.WithoutCancel(ctx), id)) }()
	archive := agentTar(files, access)
	defer func() { _ = archive.Close() }()
	err = e.call(ctx, copyTimeout, "copy agent", func(ctx context.Context) error {
		return e.cli.CopyToContainer(ctx, id, fillMount, archive, container.CopyToContainerOptions{})
	})
	if farm.CodeOf(err) == farm.CodeNotFound {
		return errFillBusy // another process considered this fill dead
	}
	if err != nil {
		return err
	}
	if err := e.removeVolume(ctx, noteName(name)); err != nil { // one of an earlier volume of this name
		return err
	}
	_, err = e.ensureVolume(ctx, noteName(name), map[string]string{LabelRole: RoleAgent, LabelFill: mark})
	return err
}

// agentTar packs programs into an uncompressed tar while it is read, since they are large. The caller closes it.
func agentTar(files []farm.AgentProgram, access Access) io.ReadCloser {
	r, w := io.Pipe()
	go func() { w.CloseWithError(packPrograms(files, access, w)) }()
	return r
}

func packPrograms(files []farm.AgentProgram, access Access, to io.Writer) error {
	w := tar.NewWriter(to)
	if err := w.WriteHeader(RootHeader(access)); err != nil {
		return fmt.Errorf("pack the root of the agent's volume: %w", err)
	}
	for _, f := range files {
		if err := w.WriteHeader(ProgramHeader(f.Name, int64(len(f.Data)), access)); err != nil {
			return fmt.Errorf("pack %s: %w", f.Name, err)
		}
		if _, err := w.Write(f.Data); err != nil {
			return fmt.Errorf("pack %s: %w", f.Name, err)
		}
	}
	if err := w.Close(); err != nil {
		return fmt.Errorf("pack agent: %w", err)
	}
	return nil
}

// RootHeader is the first entry of the archive that fills an agent's volume: the root of the volume.
func RootHeader(access Access) *tar.Header {
	return &tar.Header{Name: fillVolume + "/", Typeflag: tar.TypeDir, Mode: access.mode()}
}

// RootAccess is the inverse of RootHeader; false if a header is none of its.
func RootAccess(header *tar.Header) (Access, bool) {
	for _, access := range []Access{Execute, ReadExecute} {
		if want := RootHeader(access); header.Name == want.Name && header.Typeflag == want.Typeflag && header.Mode == want.Mode {
			return access, true
		}
	}
	return 0, false
}

// ProgramHeader is the entry of a program, which follows in the archive.
func ProgramHeader(name string, size int64, access Access) *tar.Header {
	return &tar.Header{Name: path.Join(fillVolume, name), Typeflag: tar.TypeReg, Mode: access.mode(), Size: size}
}

// Helpers are containers that exist for a moment and run no program of others: to fill a volume, or to find out what the engine can do. They have
// no rights that a sandbox lacks, and its seccomp profile.

// helperUser is the user of helpers.
const (
	helperUID  = 65534
	helperUser = "65534:65534"
)

// createHelper creates a helper; name may be empty.
func (e *Engine) createHelper(ctx context.Context, name string, helper container.CreateRequest) (string, error) {
	var made container.CreateResponse
	err := e.call(ctx, createTimeout, "create helper container", func(ctx context.Context) error {
		var err error
		made, err = e.cli.ContainerCreate(ctx, helper.Config, helper.HostConfig, nil, nil, name)
		return err
	})
	return made.ID, err
}

// fillHelper has a volume that is about to be filled. It is never started.
func (e *Engine) fillHelper(image, volume string) container.CreateRequest {
	return e.helper(image, "/never-started", container.HostConfig{Mounts: []mount.Mount{{
		Type: mount.TypeVolume, Source: volume, Target: fillMount + "/" + fillVolume, VolumeOptions: &mount.VolumeOptions{NoCopy: true},
	}}})
}

// nvidiaHelper requests the driver nvidia but no device. Its start fails at the program at the latest.
func (e *Engine) nvidiaHelper(image string) container.CreateRequest {
	helper := e.helper(image, "/not-there", container.HostConfig{Resources: container.Resources{
		DeviceRequests: []container.DeviceRequest{{Driver: DriverNvidia, Capabilities: [][]string{{"gpu"}}}},
	}})
	helper.Env = []string{visibleDevices + "=" + noDevices}
	return helper
}

// preloadHelper is for Preload. It is never started.
func (e *Engine) preloadHelper(image string) container.CreateRequest {
	return e.helper(image, "/never-started", container.HostConfig{})
}

// quotaHelper has a size limit. It is never started.
func (e *Engine) quotaHelper(image string) container.CreateRequest {
	return e.helper(image, "/never-started", container.HostConfig{StorageOpt: map[string]string{"size": "64M"}})
}

// runtimeHelper runs a program that ends at once, with an OCI runtime.
func (e *Engine) runtimeHelper(image, runtime string) container.CreateRequest {
	return e.helper(image, "/bin/true", container.HostConfig{Runtime: runtime})
}

func (e *Engine) helper(image, program string, host container.HostConfig) container.CreateRequest {
	host.NetworkMode, host.CapDrop, host.SecurityOpt = "none", []string{"ALL"}, []string{"no-new-privileges:true", "seccomp=" + e.seccomp}
	return container.CreateRequest{
		Config: &container.Config{
			Image: image, User: helperUser, Entrypoint: []string{program}, Labels: map[string]string{LabelNamespace: e.namespace, LabelRole: RoleHelper},
		},
		HostConfig: &host,
	}
}

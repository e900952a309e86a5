package dockersandbox

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/sandfarm/sandfarm/api/compat/toolset"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// defaultImage is the original's default. It stands for the farm's Python image.
	defaultImage = "python:3.9-slim"
	// memoryMB is the memory of a workspace, if a node has that much. Installed packages count, and the TensorFlow of the
	// original's second example takes half of it.
	memoryMB = 4096
	// gpuWait is how long a create waits for a free GPU before it continues without one.
	gpuWait = 15 * time.Second
	// closeWait limits the wait for a close, which continues without the caller.
	closeWait = 30 * time.Second
	// workspaces is the original's directory of workspaces; app is the working directory without a workspace.
	app        = "/app"
	workspaces = app + "/workspaces/"
)

// Labels of the sandboxes of this toolset.
const (
	labelToolset   = "toolset"
	labelWorkspace = "workspace" // id of the workspace; only persistent sandboxes have it
)

// initialized is the answer of sandbox_initialize.
type initialized struct {
	Success       bool   `json:"success"`
	ContainerID   string `json:"container_id"`
	WorkspaceID   string `json:"workspace_id,omitempty"`
	WorkspacePath string `json:"workspace_path,omitempty"`
	Mode          string `json:"mode"`
	Device        string `json:"device"` // gpu or cpu
}

// initialize creates a sandbox, with a GPU if one is free.
func initialize(ctx context.Context, c *toolset.Call) (any, error) {
	idle := 0
	out := initialized{Success: true, Mode: "standalone", Device: "cpu"}
	r := wire.CreateRequest{IdleSeconds: &idle, Labels: map[string]string{labelToolset: Name}}
	setup := `rm -rf "$HOME/.app" && ln -s /workspace "$HOME/.app"`
	if c.Flag("use_persistent", true) {
		out.Mode, out.WorkspaceID = "persistent", newWorkspace()
		out.WorkspacePath = workspaces + out.WorkspaceID
		r.Labels[labelWorkspace] = out.WorkspaceID
		setup = fmt.Sprintf(`mkdir -p "$HOME/.app/workspaces" && ln -s /workspace "$HOME/.app/workspaces/%s"`, out.WorkspaceID)
	} else if image := c.Text("image"); image != "" && image != defaultImage {
		r.Image = &image
	}
	box, err := create(ctx, c, r)
	if err != nil {
		return nil, err
	}
	out.ContainerID = box.ID
	if box.GPU != nil {
		out.Device = "gpu"
	}
	job, err := c.Finish(ctx, func(wait time.Duration) (wire.Job, error) {
		return c.Farm.Command(ctx, box.ID, wire.CommandRequest{Command: &setup}, wait)
	})
	if err == nil && (job.Result == nil || job.Result.Command == nil || failed(job.Result.Command)) {
		err = farm.Errorf(farm.CodeUnavailable, "The workspace could not be created: %s", toolset.Unfinished(&job))
	}
	if err != nil {
		drop(ctx, c, box.ID)
		return nil, err
	}
	return out, nil
}

// create creates a sandbox and waits until it is ready. It takes a GPU if one is free, and less memory if no node has memoryMB.
func create(ctx context.Context, c *toolset.Call, r wire.CreateRequest) (wire.Sandbox, error) {
	roomy := r
	roomy.Resources = &wire.ResourcesRequest{MemoryMB: new(memoryMB)}
	for _, request := range []wire.CreateRequest{roomy, r} {
		one := 1
		request.GPU = &wire.GPURequest{Count: &one}
		made, err := c.Farm.CreateSandbox(ctx, request, gpuWait)
		switch {
		case err == nil && made.Job.State == string(farm.JobCompleted):
			return made.Sandbox, nil
		case err == nil:
			drop(ctx, c, made.Sandbox.ID)
		case farm.CodeOf(err) != farm.CodeInvalid && farm.CodeOf(err) != farm.CodeUnavailable:
			return wire.Sandbox{}, err
		}
		if farm.CodeOf(err) != farm.CodeInvalid {
			break
		}
	}
	box, err := finish(ctx, c, roomy)
	if farm.CodeOf(err) == farm.CodeInvalid {
		return finish(ctx, c, r)
	}
	return box, err
}

// finish creates a sandbox as requested and waits until it is ready.
func finish(ctx context.Context, c *toolset.Call, r wire.CreateRequest) (wire.Sandbox, error) {
	var made wire.Created
	job, err := c.Finish(ctx, func(wait time.Duration) (wire.Job, error) {
		var err error
		made, err = c.Farm.CreateSandbox(ctx, r, wait)
		return made.Job, err
	})
	if err == nil && job.State != string(farm.JobCompleted) {
		err = farm.Errorf(farm.CodeUnavailable, "The sandbox could not be created: %s", toolset.Unfinished(&job))
	}
	return made.Sandbox, err
}

// drop closes a sandbox that the caller will not get.
func drop(ctx context.Context, c *toolset.Call, id string) {
	_, _ = c.Farm.CloseSandbox(context.WithoutCancel(ctx), id, 0) // if this fails, it ends at its deadline
}

// newWorkspace makes the id of a workspace, a random UUID.
func newWorkspace() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // it never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// stop closes a sandbox that is not persistent.
func stop(ctx context.Context, c *toolset.Call) (any, error) {
	p, err := findTarget(ctx, c)
	if err != nil {
		return nil, err
	}
	if p.workspace != "" || c.Flag("is_persistent", false) {
		return said{Success: true, Message: "The sandbox " + p.id + " is persistent and keeps running. clean_workspace closes it."}, nil
	}
	if _, err := c.Farm.CloseSandbox(ctx, p.id, closeWait); err != nil {
		return nil, err
	}
	return said{Success: true, Message: "The sandbox " + p.id + " is stopped and removed."}, nil
}

// clean closes the sandbox that is the workspace.
func clean(ctx context.Context, c *toolset.Call) (any, error) {
	p, err := findTarget(ctx, c)
	if err != nil {
		return nil, err
	}
	if _, err := c.Farm.CloseSandbox(ctx, p.id, closeWait); err != nil {
		return nil, err
	}
	return said{Success: true, Message: "The workspace " + p.workspace + " is removed with its files."}, nil
}

// logged is the answer of get_container_logs.
type logged struct {
	Success bool   `json:"success"`
	Logs    string `json:"logs"`
}

// logs describes a sandbox from the farm's records: its container prints nothing.
func logs(ctx context.Context, c *toolset.Call) (any, error) {
	p, err := findTarget(ctx, c)
	if err != nil {
		return nil, err
	}
	line := func(at time.Time, what string) string { return at.UTC().Format(time.RFC3339) + " " + what + "\n" }
	text := line(p.state.CreatedAt, "created from the image "+p.state.Image) + line(p.state.LastUsedAt, "last used, now "+p.state.State)
	return logged{Success: true, Logs: text + line(p.state.ExpiresAt, "ends at the latest")}, nil
}

package compat

import (
	"context"
	"crypto/rand"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// dockerName is the toolset's name.
const dockerName = "docker-sandbox"

const dockerInstructions = `Run commands and Python programs in an isolated sandbox:
1. sandbox_initialize gives a container_id and a workspace_id for all other tools.
2. write_file_sandbox, copy_file and copy_project put files into the workspace. Sandboxes have no network but the farm's package index (pip install works). What a Python program imports, and what requirements.txt lists, is installed before "python FILE" runs.
3. sandbox_exec runs commands one after the other in the workspace, until one fails.
4. copy_file_from_sandbox gives a file back.
5. clean_workspace ends a workspace, sandbox_stop a sandbox that was made with use_persistent false.`

// Parts of several descriptions.
const (
	workspaceDoc = "Id of the workspace, from sandbox_initialize."
	contentDoc   = "Text of the file, where the server cannot read the caller's files."
	base64Doc    = "Bytes of the file in base64, instead of content."
)

// dockerToolset stands for the system "Docker Code Sandbox MCP": a model gets a container with a workspace, writes and copies files into
// it, runs commands, and copies files out. In the original, workspaces shared one container; here each workspace is a sandbox of its own,
// so workspaces cannot see each other. Paths are those of the original: a workspace lies under /app/workspaces/<workspace_id>, or /app
// where there is no workspace.
func dockerToolset() *Toolset {
	id := mcp.Text("container_id", "Id of the sandbox, from sandbox_initialize.").Needed()
	workspace := mcp.Text("workspace_id", workspaceDoc).OrNull()
	changes := mcp.Hints{Destructive: true, Idempotent: true}
	return &Toolset{
		Name: dockerName, Title: "Docker sandboxes", About: "Sandboxes for commands, Python programs and whole projects.", Instructions: dockerInstructions,
		Structured: true, Refuse: refuseDocker,
		Tools: []Tool{
			{
				Name: "sandbox_initialize", Title: "Start a sandbox", Hints: mcp.Hints{OpenWorld: true}, Run: dockerInitialize,
				About: "Start a sandbox with an empty workspace. It has a GPU when one is free. By default it is persistent: sandbox_stop keeps it, and clean_workspace ends it.",
				Params: []mcp.Param{
					mcp.Text("image", "Image of a sandbox that is not persistent. The default means the farm's own Python image.").Or(dockerImage),
					mcp.Flag("use_persistent", "Give a persistent workspace.").Or(true),
				},
			}, {
				Name: "sandbox_exec", Title: "Run commands", Hints: mcp.Hints{Destructive: true, OpenWorld: true}, Run: dockerExec,
				About:  "Run shell commands in the workspace, one after the other, until one fails. Each has its exit_code, stdout and stderr. Before a Python program starts, what it imports and what requirements.txt lists is installed; the answer says what and why.",
				Params: []mcp.Param{id, mcp.Texts("commands", "The commands, each as for a shell.").Needed(), workspace},
			}, {
				Name: "write_file_sandbox", Title: "Write a file", Hints: changes, Run: dockerWriteFile, About: "Write a text file into the workspace.",
				Params: []mcp.Param{
					id, mcp.Text("file_name", "Name of the file.").Needed(), mcp.Text("file_contents", "Its text.").Needed(),
					workspace, mcp.Text("dest_dir", "Directory in the workspace.").OrNull(),
				},
			}, {
				Name: "copy_file", Title: "Copy a file into the sandbox", Hints: changes, Run: dockerCopyFile,
				About: "Copy a file of the caller into the workspace. Where the server cannot read it, give its content.",
				Params: []mcp.Param{
					id, mcp.Text("local_src_file", "Path of the file on the caller's machine. Only the stdio server can read it: over HTTP it names the file, whose content you give.").Needed(), workspace,
					mcp.Text("dest_path", "Path in the workspace, or a directory where it ends in /; by default the file's own name.").OrNull(),
					mcp.Text("content", contentDoc), mcp.Text("content_base64", base64Doc),
				},
			}, {
				Name: "copy_project", Title: "Copy a directory into the sandbox", Hints: changes, Run: dockerCopyProject,
				About: "Copy a directory of the caller into the workspace, under its own name. Left out are " + leftOut + "; skipped names what else is. Where the server cannot read it, give its content.",
				Params: []mcp.Param{
					id, mcp.Text("local_src_dir", "Path of the directory on the caller's machine. Only the stdio server can read it: over HTTP it names the directory, whose content you give.").Needed(), workspace,
					mcp.Text("dest_dir", "Directory in the workspace.").OrNull(),
					mcp.Object("content", "The files, from relative path to text; a path that ends in / is an empty directory."),
					mcp.Text("content_base64", "The directory as a tar in base64, compressed by gzip or not, instead of content. It keeps executable bits."),
				},
			}, {
				Name: "copy_file_from_sandbox", Title: "Copy a file out of the sandbox", Hints: mcp.Hints{Idempotent: true}, Run: dockerCopyOut,
				About: "Copy a file of the workspace to the caller. Where the server cannot write the caller's files, leave local_dest_path out and use the url.",
				Params: []mcp.Param{
					id, mcp.Text("container_src_path", "Path of the file: relative to the workspace, or absolute.").Needed(), workspace,
					mcp.Text("local_dest_path", "Path on the caller's machine; by default the file's own name. Only the stdio server can write there: over HTTP leave it out.").OrNull(),
				},
			}, {
				Name: "sandbox_stop", Title: "Stop a sandbox", Hints: mcp.Hints{Destructive: true, Idempotent: true}, Run: dockerStop,
				About:  "Stop and remove a sandbox. A persistent one is kept.",
				Params: []mcp.Param{id, mcp.Flag("is_persistent", "The sandbox is persistent: keep it.").Or(false)},
			}, {
				Name: "clean_workspace", Title: "Clean a workspace", Hints: mcp.Hints{Destructive: true, Idempotent: true}, Run: cleanName,
				About:  "Remove a workspace with all its files, and the sandbox that it is.",
				Params: []mcp.Param{id, mcp.Text("workspace_id", workspaceDoc).Needed()},
			}, {
				Name: "get_container_logs", Title: "Show a sandbox's log", Hints: mcp.Hints{ReadOnly: true, Idempotent: true}, Run: dockerLogs,
				About: "Tell what happened to a sandbox.", Params: []mcp.Param{id},
			},
		},
	}
}

// dockerRefusal is the shape of an error.
type dockerRefusal struct {
	Success bool   `json:"success"`
	Error   string `json:"error"`
}

// refuseDocker describes an error. In the original that is a normal answer, except for wrong arguments.
func refuseDocker(_ string, args mcp.Arguments, err error) mcp.Reply {
	return mcp.Reply{Value: dockerRefusal{Error: sentence(err)}, IsError: args == nil}
}

// dockerSaid is the answer of tools that only report success.
type dockerSaid struct {
	Success bool   `json:"success"`
	Message string `json:"message"`
}

const (
	// dockerImage is the original's default. It stands for the farm's Python image.
	dockerImage = "python:3.9-slim"
	// dockerMemoryMB is the memory of a workspace, if a node has that much. Installed packages count, and the TensorFlow of the
	// original's second example takes half of it.
	dockerMemoryMB = 4096
	// gpuWait is how long a create waits for a free GPU before it continues without one.
	gpuWait = 15 * time.Second
	// dockerCloseWait limits the wait for a close, which continues without the caller.
	dockerCloseWait = 30 * time.Second
	// workspaces is the original's directory of workspaces; app is the working directory without a workspace.
	dockerApp        = "/app"
	dockerWorkspaces = dockerApp + "/workspaces/"
)

// Labels of the sandboxes of this toolset.
const (
	labelToolset   = "toolset"
	labelWorkspace = "workspace" // id of the workspace; only persistent sandboxes have it
)

// dockerInitialized is the answer of sandbox_initialize.
type dockerInitialized struct {
	Success       bool   `json:"success"`
	ContainerID   string `json:"container_id"`
	WorkspaceID   string `json:"workspace_id,omitempty"`
	WorkspacePath string `json:"workspace_path,omitempty"`
	Mode          string `json:"mode"`
	Device        string `json:"device"` // gpu or cpu
}

// dockerInitialize creates a sandbox, with a GPU if one is free.
func dockerInitialize(ctx context.Context, c *Call) (any, error) {
	idle := 0
	out := dockerInitialized{Success: true, Mode: "standalone", Device: "cpu"}
	r := wire.CreateRequest{IdleSeconds: &idle, Labels: map[string]string{labelToolset: dockerName}}
	setup := `rm -rf "$HOME/.app" && ln -s /workspace "$HOME/.app"`
	if c.Flag("use_persistent", true) {
		out.Mode, out.WorkspaceID = "persistent", newWorkspace()
		out.WorkspacePath = dockerWorkspaces + out.WorkspaceID
		r.Labels[labelWorkspace] = out.WorkspaceID
		setup = fmt.Sprintf(`mkdir -p "$HOME/.app/workspaces" && ln -s /workspace "$HOME/.app/workspaces/%s"`, out.WorkspaceID)
	} else if image := c.Text("image"); image != "" && image != dockerImage {
		r.Image = &image
	}
	box, err := dockerCreate(ctx, c, r)
	if err != nil {
		return nil, err
	}
	out.ContainerID = box.ID
	if box.GPU != nil {
		out.Device = "gpu"
	}
	job, err := c.finish(ctx, func(wait time.Duration) (wire.Job, error) {
		return c.Farm.Command(ctx, box.ID, wire.CommandRequest{Command: &setup}, wait)
	})
	if err == nil && (job.Result == nil || job.Result.Command == nil || anyFailed(job.Result.Command)) {
		err = farm.Errorf(farm.CodeUnavailable, "The workspace could not be created: %s", unfinished(&job))
	}
	if err != nil {
		c.drop(ctx, box.ID)
		return nil, err
	}
	return out, nil
}

// dockerCreate creates a sandbox and waits until it is ready. It takes a GPU if one is free, and less memory if no node has memoryMB.
func dockerCreate(ctx context.Context, c *Call, r wire.CreateRequest) (wire.Sandbox, error) {
	roomy := r
	roomy.Resources = &wire.ResourcesRequest{MemoryMB: new(dockerMemoryMB)}
	for _, request := range []wire.CreateRequest{roomy, r} {
		one := 1
		request.GPU = &wire.GPURequest{Count: &one}
		made, err := c.Farm.CreateSandbox(ctx, request, gpuWait)
		switch {
		case err == nil && made.Job.State == string(farm.JobCompleted):
			return made.Sandbox, nil
		case made.Sandbox.ID != "":
			c.drop(ctx, made.Sandbox.ID)
			if err != nil {
				return wire.Sandbox{}, err
			}
		case farm.CodeOf(err) != farm.CodeInvalid && farm.CodeOf(err) != farm.CodeUnavailable:
			return wire.Sandbox{}, err
		}
		if farm.CodeOf(err) != farm.CodeInvalid {
			break
		}
	}
	box, err := dockerFinish(ctx, c, roomy)
	if farm.CodeOf(err) == farm.CodeInvalid {
		return dockerFinish(ctx, c, r)
	}
	return box, err
}

// dockerFinish creates a sandbox as requested and waits until it is ready.
func dockerFinish(ctx context.Context, c *Call, r wire.CreateRequest) (wire.Sandbox, error) {
	var made wire.Created
	job, err := c.finish(ctx, func(wait time.Duration) (wire.Job, error) {
		var err error
		made, err = c.Farm.CreateSandbox(ctx, r, wait)
		return made.Job, err
	})
	if err == nil && job.State != string(farm.JobCompleted) {
		err = farm.Errorf(farm.CodeUnavailable, "The sandbox could not be created: %s", unfinished(&job))
	}
	if err != nil {
		c.drop(ctx, made.Sandbox.ID)
	}
	return made.Sandbox, err
}

// newWorkspace makes the id of a workspace, a random UUID.
func newWorkspace() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // it never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// dockerStop closes a sandbox that is not persistent.
func dockerStop(ctx context.Context, c *Call) (any, error) {
	p, err := findDockerTarget(ctx, c)
	if err != nil {
		return nil, err
	}
	if p.workspace != "" || c.Flag("is_persistent", false) {
		return dockerSaid{Success: true, Message: "The sandbox " + p.id + " is persistent and keeps running. clean_workspace closes it."}, nil
	}
	if _, err := c.Farm.CloseSandbox(ctx, p.id, dockerCloseWait); err != nil {
		return nil, err
	}
	return dockerSaid{Success: true, Message: "The sandbox " + p.id + " is stopped and removed."}, nil
}

// cleanName closes the sandbox that is the workspace.
func cleanName(ctx context.Context, c *Call) (any, error) {
	p, err := findDockerTarget(ctx, c)
	if err != nil {
		return nil, err
	}
	if _, err := c.Farm.CloseSandbox(ctx, p.id, dockerCloseWait); err != nil {
		return nil, err
	}
	return dockerSaid{Success: true, Message: "The workspace " + p.workspace + " is removed with its files."}, nil
}

// dockerLogged is the answer of get_container_logs.
type dockerLogged struct {
	Success bool   `json:"success"`
	Logs    string `json:"logs"`
}

// dockerLogs describes a sandbox from the farm's records: its container prints nothing.
func dockerLogs(ctx context.Context, c *Call) (any, error) {
	p, err := findDockerTarget(ctx, c)
	if err != nil {
		return nil, err
	}
	line := func(at time.Time, what string) string { return at.UTC().Format(time.RFC3339) + " " + what + "\n" }
	text := line(p.state.CreatedAt, "created from the image "+p.state.Image) + line(p.state.LastUsedAt, "last used, now "+p.state.State)
	return dockerLogged{Success: true, Logs: text + line(p.state.ExpiresAt, "ends at the latest")}, nil
}

// dockerTarget is the sandbox and workspace of a call.
type dockerTarget struct {
	id        string
	base      string // path of its workspace in the original
	workspace string // id of its workspace, also if the call did not name it; empty: the sandbox is not persistent
	state     wire.Sandbox
}

// findDockerTarget finds the target of a call. It refuses a workspace id that was never issued.
func findDockerTarget(ctx context.Context, c *Call) (dockerTarget, error) {
	p := dockerTarget{id: c.Text("container_id"), base: dockerApp}
	box, err := c.Farm.Sandbox(ctx, p.id)
	if err != nil {
		return p, err
	}
	if !farm.SandboxState(box.State).Accepts() {
		return p, farm.NotFoundf("The sandbox %s is %s. Call sandbox_initialize for a new one.", p.id, box.State)
	}
	p.state, p.workspace = box, box.Labels[labelWorkspace]
	if c.Has("workspace_id") {
		if given := c.Text("workspace_id"); given == "" || given != p.workspace {
			return p, farm.NotFoundf("There is no workspace %q in the sandbox %s: use the workspace_id that sandbox_initialize gave with it.", given, p.id)
		}
		p.base = dockerWorkspaces + p.workspace
	}
	return p, nil
}

// shown is a path of the workspace as the original reports it.
func (t dockerTarget) shown(path string) string {
	if path == "" || path == "." {
		return t.base
	}
	return t.base + "/" + path
}

// inside converts a caller's path to one in the workspace. As in the original, an absolute path starts there too. A path from an
// earlier answer leads to the same file.
func (t dockerTarget) inside(param, given string) (string, error) {
	if rest, ok := strings.CutPrefix(given, t.base); ok && (rest == "" || rest[0] == '/') {
		given = rest
	}
	clean, err := farm.CleanPath(lexical(strings.TrimLeft(given, "/")))
	if err != nil {
		return "", farm.Invalidf("%s: %s", param, farm.MessageOf(err))
	}
	return clean, nil
}

// source is the path in the workspace of a file to copy out, given relative, or absolute with any name of the workspace. It is empty
// for an absolute path elsewhere.
func (t dockerTarget) source(wanted string) (string, error) {
	name := lexical(wanted)
	for _, root := range []string{dockerWorkspaces + t.workspace, dockerApp, farm.Workspace} {
		if rest, ok := strings.CutPrefix(name, root+"/"); ok && root != dockerWorkspaces {
			name = rest
			break
		}
	}
	if strings.HasPrefix(name, "/") {
		return "", nil
	}
	clean, err := farm.CleanFilePath(name)
	if err != nil {
		return "", farm.Invalidf("container_src_path: %s", farm.MessageOf(err))
	}
	return clean, nil
}

// reach makes a file that was just written reachable under the path in the answer: in a persistent sandbox that is used without its
// workspace_id, /app is not the workspace itself.
func (t dockerTarget) reach(ctx context.Context, c *Call, written string) error {
	first, _, _ := strings.Cut(written, "/")
	if t.base != dockerApp || t.workspace == "" || first == "." {
		return nil
	}
	_, err := t.run(ctx, c, `[ -e "$HOME/.app/$NAME" ] || ln -sn "/workspace/$NAME" "$HOME/.app/$NAME"`, map[string]string{"NAME": first})
	return err
}

// stage copies any file of the sandbox into the workspace, into a new directory, and returns its path there. The caller removes the
// directory.
func (t dockerTarget) stage(ctx context.Context, c *Call, from string) (dir, file string, err error) {
	dir = ".copy-" + farm.NewID(farm.RequestPrefix)
	file = path.Join(dir, path.Base(from))
	ok, err := t.run(ctx, c, `[ -f "$FROM" ] && mkdir "$DIR" && cp -- "$FROM" "$TO"`, map[string]string{"FROM": from, "DIR": dir, "TO": file})
	if err == nil && !ok {
		err = farm.NotFoundf("container_src_path %q is not a file of the sandbox, or it cannot be read.", farm.Shorten(from))
	}
	return dir, file, err
}

// run runs one of our own commands in the workspace and reports whether it succeeded.
func (t dockerTarget) run(ctx context.Context, c *Call, command string, env map[string]string) (bool, error) {
	job, err := c.finish(ctx, func(wait time.Duration) (wire.Job, error) {
		return c.Farm.Command(ctx, t.id, wire.CommandRequest{Command: &command, Env: env}, wait)
	})
	return err == nil && job.Result != nil && job.Result.Command != nil && !anyFailed(job.Result.Command), err
}

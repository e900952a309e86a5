package dockersandbox

import (
	"context"
	"path"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/api/compat/toolset"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// target is the sandbox and workspace of a call.
type target struct {
	id        string
	base      string // path of its workspace in the original
	workspace string // id of its workspace, also if the call did not name it; empty: the sandbox is not persistent
	state     wire.Sandbox
}

// findTarget finds the target of a call. It refuses a workspace id that was never issued.
func findTarget(ctx context.Context, c *toolset.Call) (target, error) {
	p := target{id: c.Text("container_id"), base: app}
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
		p.base = workspaces + p.workspace
	}
	return p, nil
}

// shown is a path of the workspace as the original reports it.
func (t target) shown(path string) string {
	if path == "" || path == "." {
		return t.base
	}
	return t.base + "/" + path
}

// inside converts a caller's path to one in the workspace. As in the original, an absolute path starts there too. A path from an
// earlier answer leads to the same file.
func (t target) inside(param, given string) (string, error) {
	if rest, ok := strings.CutPrefix(given, t.base); ok && (rest == "" || rest[0] == '/') {
		given = rest
	}
	clean, err := farm.CleanPath(toolset.Lexical(strings.TrimLeft(given, "/")))
	if err != nil {
		return "", farm.Invalidf("%s: %s", param, farm.MessageOf(err))
	}
	return clean, nil
}

// source is the path in the workspace of a file to copy out, given relative, or absolute with any name of the workspace. It is empty
// for an absolute path elsewhere.
func (t target) source(wanted string) (string, error) {
	name := toolset.Lexical(wanted)
	for _, root := range []string{workspaces + t.workspace, app, farm.Workspace} {
		if rest, ok := strings.CutPrefix(name, root+"/"); ok && root != workspaces {
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
func (t target) reach(ctx context.Context, c *toolset.Call, written string) error {
	first, _, _ := strings.Cut(written, "/")
	if t.base != app || t.workspace == "" || first == "." {
		return nil
	}
	_, err := t.run(ctx, c, `[ -e "$HOME/.app/$NAME" ] || ln -sn "/workspace/$NAME" "$HOME/.app/$NAME"`, map[string]string{"NAME": first})
	return err
}

// stage copies any file of the sandbox into the workspace, into a new directory, and returns its path there. The caller removes the
// directory.
func (t target) stage(ctx context.Context, c *toolset.Call, from string) (dir, file string, err error) {
	dir = ".copy-" + farm.NewID(farm.RequestPrefix)
	file = path.Join(dir, path.Base(from))
	ok, err := t.run(ctx, c, `[ -f "$FROM" ] && mkdir "$DIR" && cp -- "$FROM" "$TO"`, map[string]string{"FROM": from, "DIR": dir, "TO": file})
	if err == nil && !ok {
		err = farm.NotFoundf("container_src_path %q is not a file of the sandbox, or it cannot be read.", farm.Shorten(from))
	}
	return dir, file, err
}

// run runs one of our own commands in the workspace and reports whether it succeeded.
func (t target) run(ctx context.Context, c *toolset.Call, command string, env map[string]string) (bool, error) {
	job, err := c.Finish(ctx, func(wait time.Duration) (wire.Job, error) {
		return c.Farm.Command(ctx, t.id, wire.CommandRequest{Command: &command, Env: env}, wait)
	})
	return err == nil && job.Result != nil && job.Result.Command != nil && !failed(job.Result.Command), err
}

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

// place is the sandbox that a call works in.
type place struct {
	id        string
	base      string // what the original calls its workspace
	workspace string // its workspace's id, whether the call named it or not; empty: it is not persistent
	state     wire.Sandbox
}

// find gives the place of a call. A workspace that was never given out is refused.
func find(ctx context.Context, c *toolset.Call) (place, error) {
	p := place{id: c.Text("container_id"), base: app}
	box, err := c.Farm.Sandbox(ctx, p.id)
	if err != nil {
		return p, err //nolint:wrapcheck // an error of the farm
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

// shown is a path of the workspace as the original tells it.
func (p place) shown(path string) string {
	if path == "" || path == "." {
		return p.base
	}
	return p.base + "/" + path
}

// inside is a path of the caller's, in the workspace. As in the original, one that is absolute begins there, too; one that the
// tools themselves have told leads to what it told of.
func (p place) inside(param, given string) (string, error) {
	if rest, ok := strings.CutPrefix(given, p.base); ok && (rest == "" || rest[0] == '/') {
		given = rest
	}
	clean, err := farm.CleanPath(toolset.Lexical(strings.TrimLeft(given, "/")))
	if err != nil {
		return "", farm.Invalidf("%s: %s", param, farm.MessageOf(err))
	}
	return clean, nil
}

// source is the path in the workspace of what the caller wants: relative, or absolute by any of the workspace's names.
// Empty: it is absolute and lies elsewhere.
func (p place) source(wanted string) (string, error) {
	name := toolset.Lexical(wanted)
	for _, root := range []string{workspaces + p.workspace, app, farm.Workspace} {
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

// reach makes what was just written reachable under the path that is told of it: in a persistent sandbox that is used
// without its workspace_id, /app is not the workspace itself.
func (p place) reach(ctx context.Context, c *toolset.Call, written string) error {
	first, _, _ := strings.Cut(written, "/")
	if p.base != app || p.workspace == "" || first == "." {
		return nil
	}
	_, err := p.run(ctx, c, `[ -e "$HOME/.app/$NAME" ] || ln -sn "/workspace/$NAME" "$HOME/.app/$NAME"`, map[string]string{"NAME": first})
	return err
}

// stage copies a file of the sandbox, wherever it lies, into the workspace, and gives its path there, in a directory of its
// own that the caller removes.
func (p place) stage(ctx context.Context, c *toolset.Call, from string) (dir, file string, err error) {
	dir = ".copy-" + farm.NewID(farm.RequestPrefix)
	file = path.Join(dir, path.Base(from))
	ok, err := p.run(ctx, c, `[ -f "$FROM" ] && mkdir "$DIR" && cp -- "$FROM" "$TO"`, map[string]string{"FROM": from, "DIR": dir, "TO": file})
	if err == nil && !ok {
		err = farm.NotFoundf("container_src_path %q is no file of the sandbox, or it cannot be read.", farm.Shorten(from))
	}
	return dir, file, err
}

// run runs a command of ours in the workspace, and reports whether it did what it should.
func (p place) run(ctx context.Context, c *toolset.Call, command string, env map[string]string) (bool, error) {
	job, err := c.Finish(ctx, func(wait time.Duration) (wire.Job, error) {
		return c.Farm.Command(ctx, p.id, wire.CommandRequest{Command: &command, Env: env}, wait)
	})
	return err == nil && job.Result != nil && job.Result.Command != nil && !failed(job.Result.Command), err
}

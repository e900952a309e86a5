// Package compat has the toolsets of four older systems: sets of tools with those systems' own names, parameters and answers, over the
// farm's verbs. Each system has files of its own (docker, sandbox, env, notebook); toolset.go is their shared frame. api/mcp serves a
// toolset over streamable HTTP, SSE and stdio; routes with another form, which api/tools holds, call single tools. The package has no
// rules and no state of its own: each tool is an adapter over a Farm, which api/tools implements in the server and the REST client in
// "sandfarm mcp", so a sandbox made by a tool is visible under /v1 and the other way round.
package compat

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Toolset is the set of tools of one older system. It has no state of any caller.
type Toolset struct {
	Name         string // in addresses, and for --toolset
	Title, About string // one line, for people
	Instructions string // to the model: how to use the tools together
	Structured   bool   // answers are also sent as structured content
	Tools        []Tool
	// Refuse converts an error to the system's own shape. Internal errors are already logged and have a sentence for callers.
	// Arguments are those of the call, nil if they were wrong.
	Refuse func(tool string, args mcp.Arguments, err error) mcp.Reply
}

// Toolsets makes all toolsets, in the order in which help and documentation list them.
func Toolsets() []*Toolset {
	return []*Toolset{sandboxToolset(), dockerToolset(), envToolset(), notebookToolset()}
}

// Bare is the name of the toolset that is also served over SSE at /sse, without a name in the path: the system it stands for
// had no other address.
const Bare = envName

// Tool is one tool: its description for models and its function. Run returns the answer in the system's own shape; a string is sent as
// it is. The toolset's Refuse converts its errors.
type Tool struct {
	Name, Title, About string
	Params             []mcp.Param
	Hints              mcp.Hints
	Run                func(ctx context.Context, c *Call) (any, error)
}

// Call is one call of a tool.
type Call struct {
	mcp.Arguments
	Farm     Farm
	Local    mcp.LocalFiles // the caller's own files; nil if the farm runs elsewhere
	progress *mcp.Progress
	more     func(ctx context.Context) error // see Env
}

// Env is the environment of a call: the caller's farm and files.
type Env struct {
	Farm   func(ctx context.Context) Farm  // as the caller sees it
	Local  mcp.LocalFiles                  // nil: over HTTP
	Logger *slog.Logger                    // default: nothing is logged
	More   func(ctx context.Context) error // counts a further request of the caller, or refuses it; nil: the farm counts its own
}

// waitStep is the length of one wait for a job.
const waitStep = 45 * time.Second

// await starts a job and waits for its end, at most so long. It returns the job as it is then.
func (c *Call) await(ctx context.Context, wait time.Duration, begin func(wait time.Duration) (wire.Job, error)) (wire.Job, error) {
	return mcp.Await(ctx, c.Farm, c.progress, wait, begin)
}

// finish starts a job and waits for its end, however long that takes: the job's own timeout limits it. If the caller
// disconnects, the wait ends and the job continues.
func (c *Call) finish(ctx context.Context, begin func(wait time.Duration) (wire.Job, error)) (wire.Job, error) {
	job, err := begin(0)
	for err == nil && !job.Final() {
		id := job.ID
		job, err = c.await(ctx, waitStep, func(wait time.Duration) (wire.Job, error) { return c.Farm.Job(ctx, id, wait) })
	}
	return job, err
}

// open returns an error unless the sandbox exists and accepts work. The record of a closed sandbox can still be read, but the caller
// wants to work in it.
func (c *Call) open(ctx context.Context, id string) error {
	box, err := c.Farm.Sandbox(ctx, id)
	if err != nil {
		return err
	}
	if state := farm.SandboxState(box.State); !state.Accepts() {
		return farm.Conflictf("The sandbox %s is %s. Create a new one.", farm.Shorten(id), state)
	}
	return nil
}

// Tool finds a tool by name.
func (t *Toolset) Tool(name string) (*Tool, bool) {
	for i := range t.Tools {
		if t.Tools[i].Name == name {
			return &t.Tools[i], true
		}
	}
	return nil, false
}

// Call calls a tool with arguments as decoded from JSON. It returns the answer and the error that the answer describes, if it does.
func (t *Toolset) Call(ctx context.Context, env Env, name string, given any) (mcp.Reply, error) {
	tool, ok := t.Tool(name)
	if !ok {
		err := farm.NotFoundf("There is no tool %q.", name)
		return t.Refuse(name, nil, err), err
	}
	return t.call(ctx, env, tool, given, nil)
}

func (t *Toolset) call(ctx context.Context, env Env, tool *Tool, given any, p *mcp.Progress) (mcp.Reply, error) {
	args, err := mcp.Check(tool.Params, given)
	var value any
	if err == nil {
		value, err = runTool(ctx, tool, &Call{Arguments: args, Farm: env.Farm(ctx), Local: env.Local, progress: p, more: env.More})
	}
	if err == nil {
		return mcp.Reply{Value: value}, nil
	}
	err = env.tell(ctx, tool.Name, err)
	return t.Refuse(tool.Name, args, err), err
}

// runTool runs a tool. A panic is an internal error.
func runTool(ctx context.Context, tool *Tool, c *Call) (value any, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("tool panicked: %v\n%s", v, debug.Stack())
		}
	}()
	return tool.Run(ctx, c)
}

// tell makes an error fit for the caller: an internal error is logged under an id and replaced.
func (e Env) tell(ctx context.Context, tool string, err error) error {
	code := farm.CodeOf(err)
	if code != farm.CodeInternal && farm.MessageOf(err) != "" {
		return err
	}
	if ctx.Err() != nil {
		return farm.Wrap(err, farm.CodeUnavailable, "The call ended before its job, which continues.")
	}
	id := farm.NewID(farm.RequestPrefix)
	if e.Logger != nil {
		e.Logger.ErrorContext(ctx, "tool failed", slog.String("request_id", id), slog.String("tool", tool), slog.Any("error", err))
	}
	return farm.Wrap(err, farm.CodeInternal, "Internal error of the server. Its log has the details under %s. Try again once.", id)
}

// Serve makes the server of the toolset. It refuses an incomplete toolset.
func (t *Toolset) Serve(env Env, version string, http mcp.HTTP) (*mcp.SetServer, error) {
	if err := t.Validate(); err != nil {
		return nil, err
	}
	set := mcp.Set{
		Name: t.Name, Title: t.Title, About: t.About, Instructions: t.Instructions, Version: version, Structured: t.Structured,
		Logger: env.Logger, HTTP: http, Tools: make([]mcp.SetTool, len(t.Tools)),
	}
	for i := range t.Tools {
		tool := &t.Tools[i]
		set.Tools[i] = mcp.SetTool{
			Name: tool.Name, Title: tool.Title, About: tool.About, Params: tool.Params, Hints: tool.Hints,
			Run: func(ctx context.Context, given any, p *mcp.Progress) mcp.Reply {
				reply, _ := t.call(ctx, env, tool, given, p) // the reply describes the error
				return reply
			},
		}
	}
	server, err := mcp.NewSet(set)
	if err != nil {
		return nil, fmt.Errorf("make toolset %s: %w", t.Name, err)
	}
	return server, nil
}

// sentence is the sentence of an error for the caller.
func sentence(err error) string {
	if e, ok := errors.AsType[*farm.Error](err); ok {
		return e.Message
	}
	return farm.MessageOf(err)
}

// Farm has the farm's verbs for one caller. Errors carry the farm's codes and sentences.
type Farm interface {
	mcp.Farm
	// Sandbox reads a sandbox, also a closed one. Reading does not count as use.
	Sandbox(ctx context.Context, id string) (wire.Sandbox, error)
	// Labeled lists the open sandboxes that have all these labels, newest first.
	Labeled(ctx context.Context, labels map[string]string) ([]wire.Sandbox, error)
	// WriteTar unpacks an uncompressed tar into the workspace, below dir ("" is the workspace), completely or not at all.
	WriteTar(ctx context.Context, id, dir string, tar io.Reader, size int64) error
	// OpenFile streams a file of the workspace and returns its size. The caller closes it.
	OpenFile(ctx context.Context, id, path string) (io.ReadCloser, int64, error)
	// RemoveFile removes a file of the workspace, or a directory with everything in it.
	RemoveFile(ctx context.Context, id, path string) error
	// MoveFile renames a file or directory within the workspace and creates the parent directories of its new path.
	MoveFile(ctx context.Context, id, from, to string) error
}

// Validate returns an error for each missing part of a toolset: its names, Refuse, and a Run for each tool.
func (t *Toolset) Validate() error {
	var errs []error
	if t.Name == "" || t.Title == "" || t.About == "" || t.Instructions == "" {
		errs = append(errs, errors.New("a toolset needs Name, Title, About and Instructions"))
	}
	if t.Refuse == nil {
		errs = append(errs, errors.New("a toolset needs Refuse"))
	}
	if len(t.Tools) == 0 {
		errs = append(errs, errors.New("there are no tools"))
	}
	seen := map[string]bool{}
	for _, tool := range t.Tools {
		if tool.Name == "" || tool.Title == "" || tool.About == "" {
			errs = append(errs, fmt.Errorf("tool %q: Name, Title and About must be set", tool.Name))
		}
		if tool.Run == nil {
			errs = append(errs, fmt.Errorf("tool %q: Run must be set", tool.Name))
		}
		if seen[tool.Name] {
			errs = append(errs, fmt.Errorf("tool %q is listed twice", tool.Name))
		}
		seen[tool.Name] = true
	}
	if len(errs) > 0 {
		return fmt.Errorf("toolset %q: %w", t.Name, errors.Join(errs...))
	}
	return nil
}

// program is the command that serves a toolset over stdio, where it can use files of the caller's machine.
func program(name string) string { return "sandfarm mcp --toolset " + name }

// saveLocal copies a file of a sandbox to the path local on the caller's machine and gives its size. Local must not be nil. Errors
// name param, the argument that held the path.
func (c *Call) saveLocal(ctx context.Context, sandboxID, file, param, local string) (int64, error) {
	content, _, err := c.Farm.OpenFile(ctx, sandboxID, file)
	if err != nil {
		return 0, err
	}
	defer func() { _ = content.Close() }() // read errors came with the bytes
	into, err := c.Local.Create(local)
	if err != nil {
		return 0, mcp.LocalError(param, local, err)
	}
	size, err := io.Copy(into, content)
	if err = errors.Join(err, into.Close()); err != nil {
		return 0, mcp.LocalError(param, local, err)
	}
	return size, nil
}

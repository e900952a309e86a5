package toolset

import (
	"context"
	"errors"
	"fmt"
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
}

// Env is the environment of a call: the caller's farm and files.
type Env struct {
	Farm   func(ctx context.Context) Farm // as the caller sees it
	Local  mcp.LocalFiles                 // nil: over HTTP
	Logger *slog.Logger                   // default: nothing is logged
}

// step is the length of one wait for a job.
const step = 45 * time.Second

// Await starts a job and waits for its end, at most so long. It returns the job as it is then.
func (c *Call) Await(ctx context.Context, wait time.Duration, begin func(wait time.Duration) (wire.Job, error)) (wire.Job, error) {
	return mcp.Await(ctx, c.Farm, c.progress, wait, begin)
}

// Finish starts a job and waits for its end, however long that takes: the job's own timeout limits it. If the caller
// disconnects, the wait ends and the job continues.
func (c *Call) Finish(ctx context.Context, begin func(wait time.Duration) (wire.Job, error)) (wire.Job, error) {
	job, err := begin(0)
	for err == nil && !job.Final() {
		id := job.ID
		job, err = c.Await(ctx, step, func(wait time.Duration) (wire.Job, error) { return c.Farm.Job(ctx, id, wait) })
	}
	return job, err
}

// Open returns an error unless the sandbox exists and accepts work. The record of a closed sandbox can still be read, but the caller
// wants to work in it.
func (c *Call) Open(ctx context.Context, id string) error {
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
		value, err = run(ctx, tool, &Call{Arguments: args, Farm: env.Farm(ctx), Local: env.Local, progress: p})
	}
	if err == nil {
		return mcp.Reply{Value: value}, nil
	}
	err = env.tell(ctx, tool.Name, err)
	return t.Refuse(tool.Name, args, err), err
}

// run runs a tool. A panic is an internal error.
func run(ctx context.Context, tool *Tool, c *Call) (value any, err error) {
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

// Text is the sentence of an error for the caller.
func Text(err error) string {
	if e, ok := errors.AsType[*farm.Error](err); ok {
		return e.Message
	}
	return farm.MessageOf(err)
}

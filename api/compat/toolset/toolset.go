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

// Toolset is a set of tools in the shapes of one older system. It holds nothing of any caller.
type Toolset struct {
	Name         string // in addresses, and of --toolset
	Title, About string // in a line, for people
	Instructions string // to the model: how the tools belong together
	Structured   bool   // answers are there as structured content as well
	Tools        []Tool
	// Refuse puts what went wrong into the system's own shape. Errors that are ours are logged already and come with a
	// sentence that may be told. Arguments are those of the call, nil where they were wrong.
	Refuse func(tool string, args mcp.Arguments, err error) mcp.Reply
}

// Tool is one tool: what a model is told of it, and what it does. Run gives the answer in the system's own shape; a string
// is told as it is. Its errors are told by the toolset's Refuse.
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
	Local    mcp.LocalFiles // the caller's own files; nil where the farm runs elsewhere
	progress *mcp.Progress
}

// Env is who calls, and from where.
type Env struct {
	Farm   func(ctx context.Context) Farm // as the caller sees it
	Local  mcp.LocalFiles                 // nil: over HTTP
	Logger *slog.Logger                   // default: nothing is logged
}

// step is how long one wait for a job lasts.
const step = 45 * time.Second

// Await starts a job and waits for it, at most so long. It gives the job as it is then.
func (c *Call) Await(ctx context.Context, wait time.Duration, begin func(wait time.Duration) (wire.Job, error)) (wire.Job, error) {
	return mcp.Await(ctx, c.Farm, c.progress, wait, begin) //nolint:wrapcheck // an error of the farm
}

// Finish starts a job and waits for its end, however long that takes: the job's own timeout limits it. When the caller goes
// away the wait ends and the job continues, as everywhere on the farm.
func (c *Call) Finish(ctx context.Context, begin func(wait time.Duration) (wire.Job, error)) (wire.Job, error) {
	job, err := begin(0)
	for err == nil && !job.Final() {
		id := job.ID
		job, err = c.Await(ctx, step, func(wait time.Duration) (wire.Job, error) { return c.Farm.Job(ctx, id, wait) })
	}
	return job, err
}

// Open gives an error where a sandbox is not there, or is over: what is left of one may still be read, but is no use to a
// caller who is about to work in it.
func (c *Call) Open(ctx context.Context, id string) error {
	box, err := c.Farm.Sandbox(ctx, id)
	if err != nil {
		return err //nolint:wrapcheck // an error of the farm
	}
	if state := farm.SandboxState(box.State); !state.Accepts() {
		return farm.Conflictf("The sandbox %s is %s. Create a new one.", farm.Shorten(id), state)
	}
	return nil
}

// Tool finds a tool by its name.
func (t *Toolset) Tool(name string) (*Tool, bool) {
	for i := range t.Tools {
		if t.Tools[i].Name == name {
			return &t.Tools[i], true
		}
	}
	return nil, false
}

// Call calls a tool with arguments as they were decoded from JSON. It gives the answer as it is to be told, and beside it the
// error that it tells of, if it does.
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

// run runs a tool. A panic is an error of ours.
func run(ctx context.Context, tool *Tool, c *Call) (value any, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("tool panicked: %v\n%s", v, debug.Stack())
		}
	}()
	return tool.Run(ctx, c)
}

// tell makes an error one that may be told: what is ours is logged under an id.
func (e Env) tell(ctx context.Context, tool string, err error) error {
	code := farm.CodeOf(err)
	if code != farm.CodeInternal && farm.MessageOf(err) != "" {
		return err
	}
	if ctx.Err() != nil {
		return farm.Wrap(err, farm.CodeUnavailable, "The call ended before its work.")
	}
	id := farm.NewID(farm.RequestPrefix)
	if e.Logger != nil {
		e.Logger.ErrorContext(ctx, "tool failed", slog.String("request_id", id), slog.String("tool", tool), slog.Any("error", err))
	}
	return farm.Wrap(err, farm.CodeInternal, "Something went wrong on the server's side; its log tells more under %s. Try again once.", id)
}

// Serve makes the server of the toolset. It refuses a toolset that is not complete.
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
				reply, _ := t.call(ctx, env, tool, given, p) // the reply tells of the error
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

// Text is the sentence of an error that a toolset is to tell.
func Text(err error) string {
	if e, ok := errors.AsType[*farm.Error](err); ok {
		return e.Message
	}
	return farm.MessageOf(err)
}

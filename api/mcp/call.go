package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// tool is one tool: its description for models and its function.
type tool struct {
	name, title, about string
	params             []param
	output             string // schema of the structured content
	hints              hints
	pathParam          string // the parameter that holds a path of the workspace
	run                func(*call) (*answer, error)
}

// hints are the annotations of a tool.
type hints struct{ readOnly, destructive, idempotent, openWorld bool }

// call is one call of a tool.
type call struct {
	*Server
	arguments
	ctx      context.Context // a call lives as long as its request
	farm     Farm
	tool     *tool
	progress *progress
	packages func(ctx context.Context, manager, name string) (wire.Package, error) // see Farm.Packages; nil: not made
}

// answer is the result of a tool: a text that says everything, further content blocks, and the structured content.
type answer struct {
	text       string
	blocks     []mcp.Content
	structured map[string]any
}

// add registers a tool.
func (s *Server) add(t *tool) error {
	input, err := inputSchema(t.params)
	if err != nil {
		return err
	}
	s.mcp.AddTool(mcp.Tool{
		Name: t.name, Title: t.title, Description: t.about, RawInputSchema: input, RawOutputSchema: json.RawMessage(t.output),
		Annotations: mcp.ToolAnnotation{
			Title: t.title, ReadOnlyHint: &t.hints.readOnly, DestructiveHint: &t.hints.destructive,
			IdempotentHint: &t.hints.idempotent, OpenWorldHint: &t.hints.openWorld,
		},
	}, s.handle(t))
	return nil
}

// handle makes the handler of a tool. It never returns a Go error: errors are results, which a model can read and correct.
func (s *Server) handle(t *tool) server.ToolHandlerFunc {
	return func(ctx context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		args, err := check(t.params, r.Params.Arguments)
		if err != nil {
			return s.failed(ctx, t, err), nil
		}
		budget.LeaveCore(ctx)
		ctx, end := startSpan(ctx, r.Params.Meta, t.name)
		defer end(nil)
		c := &call{Server: s, arguments: args, ctx: ctx, farm: s.Farm(ctx), tool: t}
		if r.Params.Meta != nil && goodToken(r.Params.Meta.ProgressToken) {
			c.progress = newProgress(ctx, r.Params.Meta.ProgressToken)
		}
		return c.result(), nil
	}
}

// result runs the tool and converts its answer or error. A panic is logged and becomes an internal error.
func (c *call) result() (result *mcp.CallToolResult) {
	defer func() {
		if v := recover(); v != nil {
			c.Logger.ErrorContext(c.ctx, "tool panicked", slog.String("tool", c.tool.name), slog.Any("panic", v), slog.String("stack", string(debug.Stack())))
			result = c.failed(c.ctx, c.tool, fmt.Errorf("tool panicked: %v", v))
		}
	}()
	out, err := c.tool.run(c)
	if err != nil {
		return c.failed(c.ctx, c.tool, err)
	}
	content := append([]mcp.Content{mcp.NewTextContent(out.text)}, out.blocks...)
	return &mcp.CallToolResult{Content: content, StructuredContent: out.structured}
}

// waitParam is the parameter of tools that may wait; standard is its default, what is waited for.
func waitParam(standard time.Duration, what string) param {
	return param{
		name: "wait_seconds", kind: number, low: 0, top: waitMax.Seconds(), standard: standard.Seconds(),
		doc: "Seconds to wait for " + what + ".",
	}
}

func (c *call) wait(standard time.Duration) time.Duration {
	return time.Duration(c.number("wait_seconds", standard.Seconds()) * float64(time.Second))
}

// Parameters of several tools.
func sandboxParam() param {
	return param{name: "sandbox_id", kind: text, required: true, doc: "From create_sandbox."}
}

func timeoutParam() param {
	return param{name: "timeout_seconds", kind: whole, doc: "Seconds until it is stopped; usually 300."}
}

// logged logs an error under a new request id and returns the id.
func (s *Server) logged(ctx context.Context, what string, err error) string {
	id := farm.NewID(farm.RequestPrefix)
	s.Logger.ErrorContext(ctx, "mcp call failed", slog.String("request_id", id), slog.String("tool", what), slog.Any("error", err))
	return id
}

// failed is the result of a call that failed: what was wrong and what to do next. It has no structured content, because that
// would have to fit the schema of a success.
func (s *Server) failed(ctx context.Context, t *tool, err error) *mcp.CallToolResult {
	return mcp.NewToolResultError(s.explain(ctx, t, err))
}

// explain turns an error into a sentence for a model. Internal errors are logged under an id, and only the id is shown.
func (s *Server) explain(ctx context.Context, t *tool, err error) string {
	if ctx.Err() != nil {
		return "The call ended before its job. The job continues: get_job_result has its state and result."
	}
	code, message := farm.CodeOf(err), farm.MessageOf(err)
	if message == "" {
		code = farm.CodeInternal
	}
	switch code {
	case farm.CodeInvalid:
		return named(t, message) + "\nCorrect the arguments and call " + t.name + " again."
	case farm.CodeNotFound:
		return named(t, message) + "\n" + whereToLook(message)
	case farm.CodeConflict:
		return message + "\nCall list_sandboxes to see which sandboxes take work, or create_sandbox for a new one."
	case farm.CodeTooLarge:
		return named(t, message) + "\nSend less at once, or move the data as a file."
	case farm.CodeExhausted:
		if strings.Contains(message, "can never succeed") { // the request is larger than its quota
			return message
		}
		wait := "Wait a few seconds and call " + t.name + " again; close_sandbox"
		if advises(message) {
			wait = "close_sandbox"
		}
		return message + "\n" + wait + " frees what is no longer needed."
	case farm.CodeUnauthorized:
		return message + "\nOnly the operator of this server can change that."
	case farm.CodeUnavailable:
		s.Logger.WarnContext(ctx, "mcp call failed", slog.String("tool", t.name), slog.Any("error", err))
		if advises(message) {
			return message
		}
		return message + "\nTry again in a few seconds."
	default:
		return "Internal error of the server. Its log has the details under " + s.logged(ctx, t.name, err) +
			".\nTry again once; if it fails again, tell the user."
	}
}

// advises reports whether a message of the farm says itself what to do: to try again and when, or to send the work to a new sandbox.
func advises(message string) bool { return strings.Contains(message, "again") }

// named replaces the farm's name of a field by the tool's name of the parameter, such as packages by package_names.
func named(t *tool, message string) string {
	message = strings.ReplaceAll(message, "resources.", "") // create_sandbox takes memory_mb and the like without the object around them
	switch {
	case t.pathParam != "" && strings.HasPrefix(message, "path "):
		return t.pathParam + ": " + message
	case strings.HasPrefix(message, "packages[") || strings.HasPrefix(message, "packages is "):
		for _, p := range t.params {
			if p.name == "package_names" {
				return strings.ReplaceAll("package_names"+strings.TrimPrefix(message, "packages"), " packages[", " package_names[")
			}
		}
	}
	return message
}

func whereToLook(message string) string {
	switch {
	case strings.Contains(message, "has no process"):
		return "Give process_id exactly as start_process answered. Stopped processes are forgotten, and those that ended long ago; start_process starts a new one."
	case strings.Contains(message, "has no context"):
		return "Leave context out to restart all kernels. A context begins with the first code that names it."
	case strings.Contains(message, "sandbox"):
		return "Call list_sandboxes to see the open sandboxes, or create_sandbox for a new one."
	case strings.Contains(message, "job"):
		return "Give job_id exactly as in an earlier answer. Jobs are deleted some days after their end."
	default:
		return "Call list_files to see which files exist."
	}
}

// jobFailed is the error for a job that ended for a reason other than the caller's code.
func jobFailed(jobID, state, code, message string) error {
	if message == "" {
		message = "The work was " + state + "."
	}
	kind := farm.Code(code)
	if kind == "" || kind == farm.CodeInternal {
		kind = farm.CodeUnavailable
	}
	return farm.Errorf(kind, "%s (job %s, %s)", strings.TrimSpace(message), jobID, state)
}

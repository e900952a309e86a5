package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

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

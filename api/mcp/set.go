package mcp

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"reflect"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Set is a set of tools whose answers have another shape than the farm's own, as in older systems. It is served over the
// same transports as the farm's tools, and over SSE.
type Set struct {
	Name         string // of the server
	Title, About string // in a line
	Instructions string // to the model
	Version      string
	Structured   bool // answers are also sent as structured content
	Tools        []SetTool
	Logger       *slog.Logger // default: nothing is logged
	HTTP         HTTP
}

// SetTool is one tool of a Set. Run takes the arguments as decoded from JSON, unchecked. It never fails: an error is a Reply too.
type SetTool struct {
	Name, Title, About string
	Params             []Param
	Hints              Hints
	Run                func(ctx context.Context, given any, p *Progress) Reply
}

// Hints are the annotations of a tool.
type Hints struct{ ReadOnly, Destructive, Idempotent, OpenWorld bool }

// Reply is the answer of a SetTool: a string is sent as it is, anything else as JSON.
type Reply struct {
	Value   any
	IsError bool
}

// Progress sends progress messages to the caller of a running call. A nil Progress sends none.
type Progress = progress

// Jobs is the part of a farm that follows jobs.
type Jobs = jobs

// Await starts or reads a job and waits for its end, or until the time is up. A caller that asked for progress gets the job's output
// live.
func Await(ctx context.Context, farm Jobs, p *Progress, wait time.Duration, begin func(wait time.Duration) (wire.Job, error)) (wire.Job, error) {
	return await(ctx, farm, p, wait, begin)
}

// SetServer serves a Set. It is safe for concurrent use.
type SetServer struct {
	set     Set
	mcp     *server.MCPServer
	handler http.Handler
}

// NewSet makes the server of a set. It opens no connection.
func NewSet(set Set) (*SetServer, error) {
	if set.Logger == nil {
		set.Logger = slog.New(slog.DiscardHandler)
	}
	if set.Version == "" {
		set.Version = "dev"
	}
	s := &SetServer{set: set}
	s.mcp = server.NewMCPServer(set.Name, set.Version,
		server.WithTitle(set.Title), server.WithDescription(set.About), server.WithInstructions(set.Instructions),
		server.WithToolCapabilities(false), server.WithMethodCacheHints(mcp.MethodToolsList, listCacheMS, mcp.CacheScopePublic),
		server.WithHooks(acknowledged()), server.WithRecovery(), server.WithLogger(quietly(set.Logger)),
	)
	for i := range set.Tools {
		t := &set.Tools[i]
		input, err := inputSchema(t.Params)
		if err != nil {
			return nil, fmt.Errorf("add tool %s: %w", t.Name, err)
		}
		s.mcp.AddTool(mcp.Tool{
			Name: t.Name, Title: t.Title, Description: t.About, RawInputSchema: input,
			Annotations: mcp.ToolAnnotation{
				Title: t.Title, ReadOnlyHint: &t.Hints.ReadOnly, DestructiveHint: &t.Hints.Destructive,
				IdempotentHint: &t.Hints.Idempotent, OpenWorldHint: &t.Hints.OpenWorld,
			},
		}, s.handle(t))
	}
	s.handler = NewHandler(s.mcp, set.HTTP, set.Logger)
	return s, nil
}

// Handler serves the set over streamable HTTP. The caller must already be authenticated.
func (s *SetServer) Handler() http.Handler { return s.handler }

// ServeStdio serves one client over a pair of streams until in or ctx ends. A process can do this once.
func (s *SetServer) ServeStdio(ctx context.Context, in io.Reader, out io.Writer) error {
	return serveStdio(ctx, s.mcp, s.set.Logger, in, out)
}

func (s *SetServer) handle(t *SetTool) server.ToolHandlerFunc {
	return func(ctx context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		budget.LeaveCore(ctx)
		ctx, end := startSpan(ctx, r.Params.Meta, t.Name)
		defer end(nil)
		var p *Progress
		if r.Params.Meta != nil && goodToken(r.Params.Meta.ProgressToken) {
			p = newProgress(ctx, r.Params.Meta.ProgressToken)
		}
		reply := t.Run(ctx, r.Params.Arguments, p)
		leave, err := budget.Core(ctx, weigh(reply.Value))
		if err != nil {
			return nil, err
		}
		defer leave()
		return s.result(reply)
	}
}

// result converts an answer for the protocol: its text is JSON unless the answer is a string.
func (s *SetServer) result(reply Reply) (*mcp.CallToolResult, error) {
	if text, ok := reply.Value.(string); ok {
		return &mcp.CallToolResult{Content: []mcp.Content{mcp.NewTextContent(text)}, IsError: reply.IsError}, nil
	}
	text, err := farm.Encode(reply.Value)
	if err != nil {
		return nil, err
	}
	result := &mcp.CallToolResult{Content: []mcp.Content{mcp.NewTextContent(string(text))}, IsError: reply.IsError}
	switch {
	case !s.set.Structured || reply.IsError:
	case reflect.ValueOf(reply.Value).Kind() == reflect.Slice: // structured content must be an object
		result.StructuredContent = map[string]any{"result": reply.Value}
	default:
		result.StructuredContent = reply.Value
	}
	return result, nil
}

// Hints of several tools. Programs in a sandbox can destroy what is in the sandbox, and reach package indexes or what its network allows.
func reads() hints  { return hints{readOnly: true, idempotent: true} }
func runs() hints   { return hints{destructive: true, openWorld: true} }
func brings() hints { return hints{openWorld: true} }

// tools makes every tool. Descriptions say what a tool does, when to use it, its limits, and what to call next.
func (s *Server) tools() []*tool {
	return []*tool{
		s.createSandbox(), listSandboxes(), closeSandbox(),
		executePython(), executeCommand(), getJobResult(), cancelJob(), restartKernel(),
		installPackages(), checkPackage(), checkPackages(),
		s.uploadFile(), listFiles(), s.downloadFile(),
		startProcess(), readProcess(), stopProcess(), getPortURL(),
	}
}

// ToolNames lists the names of the farm's tools.
func ToolNames() []string {
	var names []string
	for _, t := range (&Server{}).tools() {
		names = append(names, t.name)
	}
	return names
}

// addTools registers every tool.
func (s *Server) addTools() error {
	for _, t := range s.tools() {
		if err := s.add(t); err != nil {
			return fmt.Errorf("add tool %s: %w", t.name, err)
		}
	}
	return nil
}

// Package mcp serves the farm's verbs as tools of the Model Context Protocol, with mcp-go. The tools are thin adapters over a Farm
// and implement none of the farm's rules. They are served over streamable HTTP, to clients of every protocol revision since
// 2024-11-05, and over stdio. Sets of tools with other shapes (api/compat) use the same transports, and SSE.
package mcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/tracing"
)

// listCacheMS is how long clients may cache the lists of tools, prompts and resource templates, in milliseconds.
const listCacheMS = 60_000

// Server serves the farm's tools, resources and prompts. It keeps no state between requests and is safe for concurrent use.
type Server struct {
	Options
	mcp     *server.MCPServer
	handler http.Handler
}

// New makes a server. It opens no connection.
func New(o Options) (*Server, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	s := &Server{Options: o.withDefaults()}
	options := append([]server.ServerOption{
		server.WithTitle("Sandfarm"),
		server.WithDescription("Sandboxes that run code: Python, shell commands, packages and files."),
		server.WithInstructions(instructions),
		server.WithToolCapabilities(false),
		server.WithResourceCapabilities(false, false),
		server.WithPromptCapabilities(false),
		server.WithMethodCacheHints(mcp.MethodToolsList, listCacheMS, mcp.CacheScopePublic),
		server.WithMethodCacheHints(mcp.MethodPromptsList, listCacheMS, mcp.CacheScopePublic),
		server.WithMethodCacheHints(mcp.MethodResourcesTemplatesList, listCacheMS, mcp.CacheScopePublic),
		server.WithHooks(acknowledged()),
		server.WithRecovery(),
		server.WithResourceRecovery(),
		server.WithLogger(quietly(s.Logger)),
	}, s.Server...)
	if s.TaskTTL > 0 {
		options = append(options, AdvertiseTasks())
		s.HTTP.Extensions = append(slices.Clone(s.HTTP.Extensions), s.offerTasks())
	}
	s.mcp = server.NewMCPServer("sandfarm", s.Version, options...)
	if err := s.addTools(); err != nil {
		return nil, err
	}
	s.addResources()
	s.addPrompts()
	s.handler = NewHandler(s.mcp, s.HTTP, s.Logger)
	return s, nil
}

// Handler serves the tools over streamable HTTP: stateless, to clients of all revisions on one address. The caller must already be
// authenticated.
func (s *Server) Handler() http.Handler { return s.handler }

// MCP is the server of mcp-go that holds the tools.
func (s *Server) MCP() *server.MCPServer { return s.mcp }

// ServeStdio serves one client over a pair of streams until in or ctx ends. A process can do this once.
func (s *Server) ServeStdio(ctx context.Context, in io.Reader, out io.Writer) error {
	return serveStdio(ctx, s.mcp, s.Logger, in, out)
}

func serveStdio(ctx context.Context, m *server.MCPServer, logger *slog.Logger, in io.Reader, out io.Writer) error {
	d := newDelivery()
	stdio := server.NewStdioServer(m)
	server.WithErrorLogger(slog.NewLogLogger(logger.Handler(), slog.LevelDebug))(stdio)
	server.WithStdioContextFunc(func(ctx context.Context) context.Context { return withDelivery(ctx, d) })(stdio)
	if err := stdio.Listen(ctx, in, &countedLines{w: out, delivery: d}); err != nil {
		return fmt.Errorf("serve stdio: %w", err)
	}
	return nil
}

// network says what a sandbox reaches, in the words of the pages.
const network = "Sandboxes have no network but the farm's package index (pip install works); network sets it."

// instructions describe to a model how to use the tools together.
const instructions = `Sandfarm runs code in isolated sandboxes. The flow:
1. create_sandbox gives a sandbox_id. Use it for everything that belongs together: variables, files and packages stay until the sandbox is closed or its time is up. A sandbox keeps its image: for Node.js and npm create one with image node.
2. install_packages_in_sandbox starts an install and returns at once. Poll check_package_status for each package until its status is installed or failed. For npm packages set manager to npm. There is no apt: programs beyond pip and npm packages need another image, which the operator of the farm adds. ` + network + `
3. execute_python_code runs Python in a kernel that keeps its variables; execute_terminal_command runs shell commands. Files made in the working directory /workspace come back as artifacts, plots as images; download_file gives a link to a file.
4. When an answer has state queued or running, the work continues: call get_job_result with its job_id until the state is final. Do not start the same work again. cancel_job stops a job that takes too long; restart_kernel gives an empty kernel.
5. upload_file_to_sandbox, list_files and download_file move files. list_sandboxes shows what is open.
6. start_process starts a server or another program that keeps running; read_process shows what it prints, get_port_url gives a link to its port, stop_process ends it.
7. close_sandbox when you are done: it frees the sandbox and deletes its files. Artifacts keep their links for a while.
An error says what was wrong and what to do next; correct the call and try again.`

// quiet logs everything at level debug. mcp-go logs an error when a caller disconnects, which needs no action of an operator.
type quiet struct{ handler slog.Handler }

func quietly(l *slog.Logger) *slog.Logger { return slog.New(quiet{l.Handler()}) }

// Enabled reports whether debug is logged.
func (q quiet) Enabled(ctx context.Context, _ slog.Level) bool {
	return q.handler.Enabled(ctx, slog.LevelDebug)
}

// Handle logs a record.
func (q quiet) Handle(ctx context.Context, r slog.Record) error {
	r.Level = slog.LevelDebug
	return q.handler.Handle(ctx, r)
}

// WithAttrs gives a handler with attributes.
func (q quiet) WithAttrs(attrs []slog.Attr) slog.Handler { return quiet{q.handler.WithAttrs(attrs)} }

// WithGroup gives a handler with a group.
func (q quiet) WithGroup(name string) slog.Handler { return quiet{q.handler.WithGroup(name)} }

// nameMissing adds the URI to the error for a missing resource, as revision 2026-07-28 requires; mcp-go only has it in the text.
// For clients of older revisions nothing changes. The error for an unknown tool, which mcp-go says twice, is in the farm's words for all.
func nameMissing(m *server.MCPServer) {
	hooks := m.GetHooks()
	if hooks == nil {
		hooks = &server.Hooks{}
		server.WithHooks(hooks)(m)
	}
	hooks.AddOnError(func(ctx context.Context, _ any, _ mcp.MCPMethod, message any, err error) {
		d := deliveryOf(ctx)
		if used, ok := message.(*mcp.CallToolRequest); ok && d != nil && errors.Is(err, server.ErrToolNotFound) {
			d.refuse(mcp.JSONRPCErrorDetails{Code: mcp.INVALID_PARAMS, Message: fmt.Sprintf("There is no tool %q.", farm.Shorten(used.Params.Name))})
		}
		read, ok := message.(*mcp.ReadResourceRequest)
		if !ok || d == nil || !server.IsModernRequest(ctx) || !errors.Is(err, server.ErrResourceNotFound) {
			return
		}
		d.refuse(mcp.JSONRPCErrorDetails{Code: mcp.INVALID_PARAMS, Message: err.Error(), Data: map[string]any{"uri": read.Params.URI}})
	})
}

// startSpan starts the span of a tool call below the traceparent in the call's _meta, if the farm exports traces. The returned
// function ends the span.
func startSpan(ctx context.Context, meta *mcp.Meta, tool string) (context.Context, func(error)) {
	if meta == nil {
		return ctx, func(error) {}
	}
	parent, _ := meta.AdditionalFields["traceparent"].(string)
	return tracing.Adopt(ctx, parent, "tools/call "+tool)
}

// Farm has the verbs of /v1 for one caller. In the server it is implemented by api/service, in the stdio bridge by the REST client.
// Errors carry the farm's codes and the sentence that /v1 answers with. A wait of zero does not wait; a call that waits returns
// the state at the end of the wait.
type Farm interface {
	// CreateSandbox gives the id of the sandbox beside an error, too, if it was made all the same.
	CreateSandbox(ctx context.Context, r wire.CreateRequest, wait time.Duration) (wire.Created, error)
	Sandboxes(ctx context.Context) ([]wire.Sandbox, error) // open ones, newest first
	CloseSandbox(ctx context.Context, id string, wait time.Duration) (wire.Job, error)

	Execute(ctx context.Context, sandboxID string, r wire.ExecuteRequest, wait time.Duration) (wire.Job, error)
	Command(ctx context.Context, sandboxID string, r wire.CommandRequest, wait time.Duration) (wire.Job, error)
	Install(ctx context.Context, sandboxID string, r wire.PackagesRequest, wait time.Duration) (wire.Job, error)
	Restart(ctx context.Context, sandboxID, kernel string, wait time.Duration) (wire.Job, error)
	// Packages makes a function that looks packages up, all with the same look into the sandbox where that is possible. manager is pip or npm.
	Packages(sandboxID string) func(ctx context.Context, manager, name string) (wire.Package, error)

	Job(ctx context.Context, id string, wait time.Duration) (wire.Job, error)
	Cancel(ctx context.Context, id string) (wire.Job, error)
	Events(ctx context.Context, jobID string) iter.Seq2[wire.Event, error] // from the first to the final state

	Files(ctx context.Context, sandboxID, path string, recursive bool, limit int) ([]wire.FileEntry, error) // the first of them, up to limit, at most farm.MaxListedFiles
	WriteFile(ctx context.Context, sandboxID, path string, content io.Reader, size int64) (wire.FileEntry, error)
	ReadFile(ctx context.Context, sandboxID, path string, limit int64) (File, error)
	LinkFile(ctx context.Context, sandboxID, path string) (url string, err error)
	Artifact(ctx context.Context, id string, limit int64) (Artifact, error)

	StartProcess(ctx context.Context, sandboxID string, r wire.ProcessRequest) (wire.Process, error)
	// ProcessEvents yields the output of a process after the event with the id after ("" is the first that is kept), until its exit.
	ProcessEvents(ctx context.Context, sandboxID, processID, after string) iter.Seq2[wire.Event, error]
	EndProcess(ctx context.Context, sandboxID, processID string) (wire.Process, error)
	LinkPort(ctx context.Context, sandboxID string, r wire.PortLinkRequest) (wire.PortLink, error)
}

// ReadUpTo reads content for File and Artifact. It returns nil if the content is longer than the limit.
func ReadUpTo(content io.Reader, limit int64) ([]byte, error) {
	got, err := io.ReadAll(io.LimitReader(content, limit+1))
	switch {
	case err != nil:
		return nil, err
	case int64(len(got)) > limit:
		return nil, nil
	case got == nil:
		return []byte{}, nil
	}
	return got, nil
}

// File is a file of a workspace. Content is nil if it is longer than the reader's limit.
type File struct {
	Entry   wire.FileEntry
	Content []byte
}

// Artifact is an artifact with a fresh link. Content is nil if it is longer than the reader's limit.
type Artifact struct {
	wire.Artifact
	Content []byte
}

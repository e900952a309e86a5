package mcp

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
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

// Package tools serves the tools for models over HTTP: those of package mcp, the toolsets of package compat, and the routes of older systems
// that call single tools. It has the farm as these tools see it, on the verbs of package service, with what a key without the scope run
// may do (farm.go). Packages mcp and compat do not import it, nor anything of the server: the client serves the same tools over stdio.
package tools

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/access"
	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/api/ports"
	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Deps are what a Server works with. All are required.
type Deps struct {
	Service *service.Service
	Ports   *ports.Server // makes links to ports
	// SendFile answers with a file of a sandbox, as the request's headers and query ask. shown is the disposition for a harmless type.
	SendFile func(c *gin.Context, id, file, shown string) error
	// More counts further requests that one call makes, as access.Gate.More does.
	More func(ctx context.Context, tenant string, requests int) (admitted int, err error)
	// Used is told what a call did or was refused without a job, with the status that it has over /v1.
	Used    func(ctx context.Context, sandboxID, process string, status int)
	Log     *slog.Logger
	Version string
	Limits  farm.Limits
	// Heartbeat is the interval of keep-alive comments in a quiet stream, and Stall how long a transfer may stall.
	Heartbeat, Stall time.Duration
	Closing          <-chan struct{} // closed when the server stops
	Origins, Hosts   []string        // that the operator trusts
	NoAllowlist      bool            // sandboxes cannot have the network allowlist
}

// Server serves the tools. Create it with New.
type Server struct {
	Deps
	mcp      http.Handler
	toolsets []servedToolset
}

// New makes a Server.
func New(deps Deps) (*Server, error) {
	s := &Server{Deps: deps}
	var err error
	if s.mcp, err = s.newMCP(); err != nil {
		return nil, err
	}
	if s.toolsets, err = s.serveToolsets(); err != nil {
		return nil, err
	}
	return s, nil
}

// Routes are those of the Model Context Protocol and of the older systems. Their errors have those systems' shapes.
func (s *Server) Routes() []rest.Route {
	return slices.Concat(s.mcpRoutes(), s.notebookRoutes(), s.compatRoutes())
}

// mcpPath is the address of the farm's own tools.
const mcpPath = "/mcp"

// newMCP makes the handler of the tools. The limit for JSON bodies applies to them as well. Callers are authenticated and, on a farm
// without keys, their Host header is checked (guardPages) before they reach it; pages of other origins are always refused.
func (s *Server) newMCP() (http.Handler, error) {
	tools, err := mcp.New(mcp.Options{
		Farm:    func(ctx context.Context) mcp.Farm { return s.farmOf(ctx) },
		Version: s.Version, Logger: s.Log, TaskTTL: time.Duration(s.Limits.RetentionSeconds) * time.Second,
		HTTP: s.mcpHTTP(), NoAllowlist: s.NoAllowlist,
	})
	if err != nil {
		return nil, fmt.Errorf("make mcp tools: %w", err)
	}
	return tools.Handler(), nil
}

// mcpHTTP are the limits and guards of every MCP address.
func (s *Server) mcpHTTP() mcp.HTTP {
	return mcp.HTTP{
		MaxBodyBytes: s.Limits.MaxBodyBytes, Origins: s.Origins, Hosts: s.Hosts,
		AnyHost: true, WriteTimeout: s.Stall,
	}
}

// ownerOf names who may use a stream: a tenant with one key.
func ownerOf(ctx context.Context) string {
	caller := access.CallerOf(ctx)
	return caller.Tenant + " " + caller.KeyID
}

func (s *Server) mcpRoutes() []rest.Route {
	return slashed([]rest.Route{{
		Method: http.MethodPost, Path: mcpPath, Tag: "MCP", Summary: "The farm's tools by the Model Context Protocol",
		Detail: "Streamable HTTP without sessions, for clients of all protocol revisions: one JSON-RPC message in a request, its response as JSON or, with progress, as a stream of events.",
		Raw:    []string{"application/json"},
		Answers: []rest.Answer{
			{Status: http.StatusOK, Doc: "the response", Media: "application/json"},
			{Status: http.StatusAccepted, Doc: "the notification was taken"},
		},
		Scope: farm.ScopeRead, BrowserCallable: true, Handler: s.serve(s.mcp.ServeHTTP),
	}})
}

// slashed adds each route again with a trailing slash: addresses of MCP servers are often written so, and the older systems
// redirected from one form to the other.
func slashed(all []rest.Route) []rest.Route {
	for _, r := range all {
		r.Path, r.Hidden = r.Path+"/", true
		all = append(all, r)
	}
	return all
}

// serve passes a request to a handler of the protocol. Its routes need the scope read; farmOf refuses work to keys without run.
func (s *Server) serve(handler http.HandlerFunc) func(*gin.Context) error {
	return func(c *gin.Context) error {
		r := c.Request.WithContext(ports.WithAddress(c.Request.Context(), c.Request)) // a copy
		r.Body = io.NopCloser(rest.WholeBody(c))
		handler(c.Writer, r)
		return nil
	}
}

package tools

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/gin-gonic/gin"

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
	More    func(ctx context.Context, tenant string, requests int) (admitted int, err error)
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

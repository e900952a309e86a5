package e2b

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/access"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Handler serves a request to a sandbox.
type Handler func(c *gin.Context, box Box) error

// Deps are what a Door works with. All are required but Interpreter.
type Deps struct {
	Service *service.Service
	Signer  *access.Signer
	Logger  *slog.Logger
	Now     func() time.Time
	// Interpreter serves the port 49999 of sandboxes; nil: nothing listens there.
	Interpreter Handler
	// Opened lists the open sandboxes of all tenants, Find finds one of them by its id, and Keys the ids of a tenant's valid keys: tokens that were made with others are refused.
	Opened func(context.Context) ([]farm.Ref, error)
	Find   func(ctx context.Context, id string) (ref farm.Ref, ok bool, err error)
	Keys   func(ctx context.Context, tenant string) ([]string, error)
	// MaxBody bounds a JSON body, in bytes.
	MaxBody int64
	// Stall is how long the transfer of a stream may stall.
	Stall time.Duration
	// Domain is below which the sender of a request reaches the hosts of ports, and becomes the domain of its SDK; "": the SDK keeps its own.
	Domain func(*http.Request) string
}

// Door serves the SDKs. It is safe for concurrent use.
type Door struct {
	Deps
	searches *searches
}

// New makes a Door.
func New(deps Deps) *Door { return &Door{Deps: deps, searches: newSearches()} }

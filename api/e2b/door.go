package e2b

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/access"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Handler serves a request to a sandbox.
type Handler func(c *gin.Context, box Box) error

// Deps are what a Door works with. All are required.
type Deps struct {
	Service *service.Service
	Signer  *access.Signer
	Logger  *slog.Logger
	Now     func() time.Time
	// Opened lists the open sandboxes of all tenants, Find finds one of them by its id, and Keys the ids of a tenant's valid keys: tokens that were made with others are refused.
	Opened func(context.Context) ([]farm.Ref, error)
	Find   func(ctx context.Context, id string) (ref farm.Ref, ok bool, err error)
	Keys   func(ctx context.Context, tenant string) ([]string, error)
	// Hold ends the context of a request when the key of its caller ends.
	Hold func(context.Context, access.Caller) (held context.Context, release func())
	// ActFor serves a request for the caller whose token it carries, and says so in the audit. subject is what the token is for.
	ActFor func(c *gin.Context, caller access.Caller, subject string)
	Gate   *access.Gate
	Memory *budget.Budget // of requests; nil: without limit
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
	searches    *searches
	interpreter *interpreter // serves the port 49999 of sandboxes
}

// New makes a Door.
func New(deps Deps) *Door {
	return &Door{Deps: deps, searches: newSearches(), interpreter: &interpreter{service: deps.Service, maxBody: deps.MaxBody, now: deps.Now}}
}

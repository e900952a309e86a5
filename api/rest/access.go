package rest

import (
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/access"
	"github.com/sandfarm/sandfarm/api/guard"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Authenticate finds out who the caller is and leaves it in the context of the request.
func Authenticate(c *gin.Context, ring *access.Keys) error {
	caller := Caller(c) // set only for the operator, see api.Server.Operator
	if caller.KeyID == "" {
		var err error
		if caller, err = ring.Find(c.Request.Context(), keyOf(c)); err != nil {
			return err
		}
	}
	ActFor(c, caller)
	return nil
}

// ActFor serves a request for a caller whose link, token or session it carries. A caller without scopes may nothing else.
func ActFor(c *gin.Context, caller access.Caller) {
	c.Set(tenantKey, caller.Tenant)
	c.Request = c.Request.WithContext(access.WithCaller(c.Request.Context(), caller))
}

// keyOf is the key that a request carries; "" if it has none.
func keyOf(c *gin.Context) string {
	header := c.GetHeader("Authorization")
	if header == "" {
		return c.GetHeader("X-API-Key")
	}
	scheme, key, _ := strings.Cut(header, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(key)
}

// Caller is who sends an authenticated request.
func Caller(c *gin.Context) access.Caller { return access.CallerOf(c.Request.Context()) }

// Allow refuses a caller whose key lacks a scope: 403.
func Allow(c *gin.Context, scope farm.Scope) error {
	if Caller(c).May(scope) {
		return nil
	}
	return Refusef(http.StatusForbidden, farm.CodeUnauthorized, "This needs an API key with the scope %s; yours has %s.", scope, scopeNames(Caller(c).Scopes))
}

func scopeNames(scopes []farm.Scope) string {
	names := make([]string, len(scopes))
	for i, s := range scopes {
		names[i] = string(s)
	}
	return strings.Join(names, ", ")
}

// Headers that pages of trusted origins may send and read.
const (
	corsHeaders = "Accept, Authorization, Content-Type, Idempotency-Key, Last-Event-ID, Mcp-Method, Mcp-Name, Mcp-Protocol-Version, Mcp-Session-Id, Prefer, Traceparent, X-API-Key"
	corsExposed = "Content-Disposition, Content-Range, Location, Mcp-Session-Id, Retry-After, X-Request-Id"
	corsMaxAge  = "600" // seconds that a browser may remember the answer to a preflight
)

// CORS is by hand because one guard decides for REST, MCP and WebSockets, refuses other pages before the handler runs, and reports a coded
// problem. gin-contrib/cors decides by itself, from a list of origins, and answers without a body.

// AllowPage tells the browser of a trusted page that the page may read the answer. Other pages are refused, except for a
// GET: their browser keeps its answer from them.
func AllowPage(c *gin.Context, g guard.Guard) error {
	if g.Origin(c.Request) {
		allowOrigin(c)
		return nil
	}
	if c.Request.Method == http.MethodGet {
		return nil
	}
	return Refusef(http.StatusForbidden, farm.CodeUnauthorized, "Pages of this origin may not call this server.")
}

func allowOrigin(c *gin.Context) {
	h := c.Writer.Header()
	h.Add("Vary", "Origin")
	if origin := c.GetHeader("Origin"); origin != "" {
		h.Set("Access-Control-Allow-Origin", origin)
		h.Set("Access-Control-Allow-Credentials", "true")
		h.Set("Access-Control-Expose-Headers", corsExposed)
	}
}

// Preflight answers the OPTIONS request that browsers send before a page may call a path with these methods.
func Preflight(g guard.Guard, methods []string) gin.HandlerFunc {
	allowed := strings.Join(append(methods, http.MethodOptions), ", ")
	return func(c *gin.Context) {
		c.Header("Allow", allowed)
		if g.Origin(c.Request) {
			allowOrigin(c)
			c.Header("Access-Control-Allow-Methods", allowed)
			c.Header("Access-Control-Allow-Headers", corsHeaders)
			c.Header("Access-Control-Max-Age", corsMaxAge)
			if c.GetHeader("Access-Control-Request-Private-Network") == "true" {
				c.Header("Access-Control-Allow-Private-Network", "true")
			}
		}
		c.Status(http.StatusNoContent)
		c.Writer.WriteHeaderNow()
	}
}

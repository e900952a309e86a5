package rest

import (
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/guard"
	"github.com/sandfarm/sandfarm/internal/farm"
)

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

package api

import (
	"net/http"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// What pages of trusted origins may send and see.
const (
	pageHeaders = "Accept, Authorization, Content-Type, Idempotency-Key, Last-Event-ID, Mcp-Method, Mcp-Name, Mcp-Protocol-Version, Mcp-Session-Id, Prefer, Traceparent, X-API-Key"
	pageSees    = "Content-Disposition, Content-Range, Location, Mcp-Session-Id, Retry-After, X-Request-Id"
	pageAge     = "600" // seconds that a browser may remember an answer to a preflight
)

// welcome answers for pages: those of trusted origins are told that they may call, others are refused. It reports whether
// the request goes on.
func (s *Server) welcome(c *gin.Context) bool {
	if !s.pageGuard().Origin(c.Request) {
		if c.Request.Method == http.MethodGet {
			return true // what it answers, the page cannot read
		}
		s.fail(c, refusef(http.StatusForbidden, farm.CodeUnauthorized, "Pages of this origin may not call this server."))
		return false
	}
	s.allow(c)
	return true
}

// allow tells a browser that the page may read the answer.
func (s *Server) allow(c *gin.Context) {
	h := c.Writer.Header()
	h.Add("Vary", "Origin")
	if origin := c.GetHeader("Origin"); origin != "" {
		h.Set("Access-Control-Allow-Origin", origin)
		h.Set("Access-Control-Allow-Credentials", "true")
		h.Set("Access-Control-Expose-Headers", pageSees)
	}
}

// preflights registers the questions that browsers ask before they let a page call.
func (s *Server) preflights(e *gin.Engine) {
	methods := map[string][]string{}
	for _, r := range s.routes() {
		if r.pages {
			methods[r.ginPath()] = append(methods[r.ginPath()], r.method)
		}
	}
	for path, allowed := range methods {
		e.OPTIONS(path, s.preflight(strings.Join(append(allowed, http.MethodOptions), ", ")))
	}
}

func (s *Server) preflight(methods string) gin.HandlerFunc {
	return func(c *gin.Context) {
		c.Header("Allow", methods)
		if s.pageGuard().Origin(c.Request) {
			s.allow(c)
			c.Header("Access-Control-Allow-Methods", methods)
			c.Header("Access-Control-Allow-Headers", pageHeaders)
			c.Header("Access-Control-Max-Age", pageAge)
			if c.GetHeader("Access-Control-Request-Private-Network") == "true" {
				c.Header("Access-Control-Allow-Private-Network", "true")
			}
		}
		c.Status(http.StatusNoContent)
		c.Writer.WriteHeaderNow()
	}
}

// takesPages reports whether a path is one that pages may call.
func (s *Server) takesPages(path string) bool {
	return path != "" && slices.Contains(s.pagePaths, path)
}

package api

import (
	"embed"
	"fmt"
	"net/http"
	"path"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

//go:embed docs/index.html docs/app.js docs/style.css
var docsPage embed.FS

// pagePolicy lets the documentation page run its own script and nothing else.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

func (s *Server) operationRoutes() []route {
	return []route{
		{method: "GET", path: "/healthz", tag: "Operation", summary: "Is the server alive?", open: true, answers: []answer{{http.StatusOK, "it is", wire.Health{}, ""}}, handler: s.health},
		{method: "GET", path: "/readyz", tag: "Operation", summary: "Can the farm do work?", detail: "Looks at Redis, the object store and the workers.", open: true, answers: []answer{
			{http.StatusOK, "it can", wire.Ready{}, ""}, {http.StatusServiceUnavailable, "it cannot, and which part is missing", wire.Ready{}, ""},
		}, handler: s.ready},
		{method: "GET", path: "/metrics", tag: "Operation", summary: "Prometheus metrics", scope: farm.ScopeMetrics, answers: []answer{{http.StatusOK, "the metrics", nil, "text/plain"}}, handler: s.showMetrics},
		{method: "GET", path: "/openapi.json", tag: "Operation", summary: "This document", open: true, answers: []answer{{http.StatusOK, "OpenAPI 3.1", map[string]any{}, ""}}, handler: s.openapi},
		{method: "GET", path: "/docs", tag: "Operation", summary: "Interactive documentation", open: true, answers: []answer{{http.StatusOK, "a page", nil, "text/html"}}, handler: s.page("index.html")},
		{method: "GET", path: "/docs/app.js", open: true, hidden: true, handler: s.page("app.js")},
		{method: "GET", path: "/docs/style.css", open: true, hidden: true, handler: s.page("style.css")},
	}
}

func (s *Server) health(c *gin.Context) error {
	return rest.Reply(c, http.StatusOK, wire.Health{Status: "ok", Version: s.version})
}

func (s *Server) ready(c *gin.Context) error {
	state := s.service.Ready(c.Request.Context())
	status := http.StatusOK
	if state.Status != "ready" {
		status = http.StatusServiceUnavailable
		c.Header("Retry-After", rest.RetryUnavailable)
	}
	return rest.Reply(c, status, state)
}

func (s *Server) openapi(c *gin.Context) error {
	c.Header("Cache-Control", "no-cache")
	c.Data(http.StatusOK, "application/json; charset=utf-8", s.spec)
	return nil
}

// page makes the handler of a file of the documentation page.
func (s *Server) page(name string) func(*gin.Context) error {
	types := map[string]string{".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}
	return func(c *gin.Context) error {
		content, err := docsPage.ReadFile("docs/" + name)
		if err != nil {
			return fmt.Errorf("read page: %w", err)
		}
		c.Header("Content-Security-Policy", pagePolicy)
		c.Header("Cache-Control", "no-cache")
		c.Data(http.StatusOK, types[path.Ext(name)], content)
		return nil
	}
}

package api

import (
	"embed"
	"fmt"
	"net/http"
	"path"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/wire"
)

//go:embed docs/index.html docs/app.js docs/style.css
var pages embed.FS

// pagePolicy lets the documentation page run its own script and nothing else.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

func (s *Server) images(c *gin.Context) error {
	list, err := s.service.Images(c.Request.Context())
	if err != nil {
		return err
	}
	return reply(c, http.StatusOK, list)
}

func (s *Server) workers(c *gin.Context) error {
	list, err := s.service.Workers(c.Request.Context())
	if err != nil {
		return err
	}
	return reply(c, http.StatusOK, list)
}

func (s *Server) queues(c *gin.Context) error {
	list, err := s.service.Queues(c.Request.Context())
	if err != nil {
		return err
	}
	return reply(c, http.StatusOK, list)
}

func (s *Server) limits(c *gin.Context) error { return reply(c, http.StatusOK, s.service.Limits()) }

func (s *Server) health(c *gin.Context) error {
	return reply(c, http.StatusOK, wire.Health{Status: "ok", Version: s.version})
}

func (s *Server) ready(c *gin.Context) error {
	state := s.service.Ready(c.Request.Context())
	status := http.StatusOK
	if state.Status != "ready" {
		status = http.StatusServiceUnavailable
		c.Header("Retry-After", retryUnavailable)
	}
	return reply(c, status, state)
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
		content, err := pages.ReadFile("docs/" + name)
		if err != nil {
			return fmt.Errorf("read page: %w", err)
		}
		c.Header("Content-Security-Policy", pagePolicy)
		c.Header("Cache-Control", "no-cache")
		c.Data(http.StatusOK, types[path.Ext(name)], content)
		return nil
	}
}

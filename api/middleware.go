package api

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/guard"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Keys of what the middleware leaves in a gin context.
const (
	requestIDKey = "sandfarm.request_id"
	tenantKey    = "sandfarm.tenant"
	stallKey     = "sandfarm.stall"
)

func requestID(c *gin.Context) string { return c.GetString(requestIDKey) }

// tenant is the caller's tenant, once authenticate has passed.
func tenant(c *gin.Context) string { return c.GetString(tenantKey) }

// identify gives every request an id of its own. A caller's own id is not taken: it would get into our log.
func (s *Server) identify(c *gin.Context) {
	id := farm.NewID(farm.RequestPrefix)
	c.Set(requestIDKey, id)
	c.Set(stallKey, s.cfg.StallTimeout)
	h := c.Writer.Header()
	h.Set("X-Request-Id", id)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	c.Next()
}

// observe logs and counts every request. It never sees bodies, queries or keys.
func (s *Server) observe(c *gin.Context) {
	start := time.Now()
	s.metrics.inFlight.Inc()
	defer func() {
		s.metrics.inFlight.Dec()
		took := time.Since(start)
		path := c.FullPath()
		if path == "" {
			path = "none"
		}
		status := c.Writer.Status()
		s.metrics.observe(path, c.Request.Method, status, took)
		level := slog.LevelInfo
		if c.Request.Method == http.MethodGet || c.Request.Method == http.MethodHead {
			level = slog.LevelDebug
		}
		s.log.Log(c.Request.Context(), level, "request", slog.String("request_id", requestID(c)), slog.String("method", c.Request.Method),
			slog.String("route", path), slog.Int("status", status), slog.Float64("duration_ms", float64(took.Microseconds())/1000),
			slog.String("tenant", tenant(c)))
	}()
	c.Next()
}

// recover turns a panic into a 500 and a line in the log.
func (s *Server) recover(c *gin.Context) {
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		if err, ok := v.(error); ok && errors.Is(err, http.ErrAbortHandler) {
			panic(v) // the way to break an answer off
		}
		s.log.ErrorContext(c.Request.Context(), "handler panicked", slog.String("request_id", requestID(c)),
			slog.String("route", c.FullPath()), slog.Any("panic", v), slog.String("stack", string(debug.Stack())))
		s.fail(c, fmt.Errorf("handler panicked: %v", v))
	}()
	c.Next()
}

// guard keeps web pages away from a server without keys: those that pointed their own name at it (DNS rebinding), and
// those of other origins.
func (s *Server) guard(c *gin.Context) {
	if len(s.tenants) > 0 {
		c.Next()
		return
	}
	if !s.pageGuard().Host(c.Request.Host) {
		s.fail(c, refusef(http.StatusForbidden, farm.CodeUnauthorized, "This farm has no API keys, so it answers only under a loopback name. Use http://127.0.0.1, or name this host as trusted."))
		return
	}
	if s.takesPages(c.FullPath()) {
		c.Next() // origins are judged there: pages on loopback may call it
		return
	}
	if err := s.origins.Check(c.Request); err != nil {
		s.fail(c, refusef(http.StatusForbidden, farm.CodeUnauthorized, "This farm has no API keys, so it takes nothing from pages of other origins."))
		return
	}
	c.Next()
}

// pageGuard knows the hosts and origins that the operator trusts.
func (s *Server) pageGuard() guard.Guard {
	return guard.Guard{Hosts: s.cfg.TrustedHosts, Origins: s.cfg.TrustedOrigins}
}

func tenants(keys []KeyConfig) map[[32]byte]string {
	out := make(map[[32]byte]string, len(keys))
	for _, key := range keys {
		sum, _ := hex.DecodeString(key.SHA256) // checked by validate
		out[[32]byte(sum)] = key.Tenant
	}
	return out
}

// authenticate finds the caller's tenant. Keys are compared by their hash, so the time it takes tells nothing of them.
func (s *Server) authenticate(c *gin.Context) error {
	if len(s.tenants) == 0 {
		c.Set(tenantKey, defaultTenant)
		return nil
	}
	key := c.GetHeader("X-API-Key")
	if header := c.GetHeader("Authorization"); header != "" {
		scheme, rest, _ := strings.Cut(header, " ")
		if !strings.EqualFold(scheme, "Bearer") {
			rest = ""
		}
		key = strings.TrimSpace(rest)
	}
	name, ok := s.tenants[sha256.Sum256([]byte(key))]
	if key == "" || !ok {
		return farm.Errorf(farm.CodeUnauthorized, "A valid API key is needed: send Authorization: Bearer <key>, or X-API-Key.")
	}
	c.Set(tenantKey, name)
	return nil
}

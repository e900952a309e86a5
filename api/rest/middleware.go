// Package rest is the HTTP plumbing that every route of the server shares: it reads bodies and queries, writes answers,
// problems, files and event streams, has the middleware, and says what a route is (Route). Each read and write of a connection has its own deadline, so
// bodies and answers may be of any length, but a stalled caller is disconnected. The package depends on gin and the
// domain's errors, and on no route.
package rest

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"time"

	"github.com/gin-gonic/gin"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/tracing"
)

// Keys of the values that the middleware sets in a gin context.
const (
	requestIDKey = "sandfarm.request_id"
	tenantKey    = "sandfarm.tenant"
	foreignKey   = "sandfarm.foreign"
	timeoutKey   = "sandfarm.stall_timeout"
)

// RequestID is the id of a request.
func RequestID(c *gin.Context) string { return c.GetString(requestIDKey) }

// Tenant is the tenant of an authenticated caller.
func Tenant(c *gin.Context) string { return c.GetString(tenantKey) }

func stallTimeout(c *gin.Context) time.Duration { return c.GetDuration(timeoutKey) }

// Identify gives every request an id and sets the headers that every answer has. An id from the caller is not used,
// because it would be logged. stall is how long the transfer of a body or an answer may stall.
func Identify(stall time.Duration) gin.HandlerFunc {
	return func(c *gin.Context) {
		id := farm.NewID(farm.RequestPrefix)
		c.Set(requestIDKey, id)
		c.Set(timeoutKey, stall)
		h := c.Writer.Header()
		h.Set("X-Request-Id", id)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		c.Next()
	}
}

// Log logs every request at its end: routes and tenants, never bodies, queries or keys. Reads are logged at debug.
func Log(log *slog.Logger) gin.HandlerFunc {
	return func(c *gin.Context) {
		start := time.Now()
		defer func() {
			level := slog.LevelInfo
			if c.Request.Method == http.MethodGet || c.Request.Method == http.MethodHead {
				level = slog.LevelDebug
			}
			log.Log(c.Request.Context(), level, "request", slog.String("request_id", RequestID(c)), slog.String("method", c.Request.Method),
				slog.String("route", PathTemplate(c)), slog.Int("status", c.Writer.Status()),
				slog.Float64("duration_ms", float64(time.Since(start).Microseconds())/1000), slog.String("tenant", Tenant(c)))
		}()
		c.Next()
	}
}

// PathTemplate is the path template of the route that answers a request; "none" if no route matches.
func PathTemplate(c *gin.Context) string {
	if path := c.FullPath(); path != "" {
		return path
	}
	return "none"
}

// Foreign notes that a program of a sandbox has answered: the status is its choice.
func Foreign(c *gin.Context) { c.Set(foreignKey, true) }

// Status is the status of the farm's own answer; 0 if a program of a sandbox has answered.
func Status(c *gin.Context) int {
	if c.GetBool(foreignKey) {
		return 0
	}
	return c.Writer.Status()
}

// Method is the method of a request, or "other" for unknown methods: callers must not create metric labels.
func Method(c *gin.Context) string {
	switch method := c.Request.Method; method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return method
	default:
		return "other"
	}
}

// MemoryTimeout is how long a request waits for memory. Others give theirs back once this process has handled their bytes, or when
// their connections stall, so a longer wait means that the process is overloaded.
const MemoryTimeout = 30 * time.Second

// Recover turns a panic into a 500 and a line in the log.
func Recover(log *slog.Logger) gin.HandlerFunc {
	return func(c *gin.Context) {
		defer func() {
			v := recover()
			if v == nil {
				return
			}
			if err, ok := v.(error); ok && errors.Is(err, http.ErrAbortHandler) {
				panic(v) // this is how a handler cuts the connection
			}
			log.ErrorContext(c.Request.Context(), "handler panicked", slog.String("request_id", RequestID(c)),
				slog.String("route", c.FullPath()), slog.Any("panic", v), slog.String("stack", string(debug.Stack())))
			Fail(c, log, fmt.Errorf("handler panicked: %v", v))
		}()
		c.Next()
	}
}

// Upgrades reports whether a request asks for a WebSocket.
func Upgrades(r *http.Request) bool {
	return r.ProtoMajor == 1 && r.ProtoMinor > 0 && r.Method == http.MethodGet && r.Header.Get("Sec-Websocket-Key") != "" && r.Header.Get("Upgrade") != ""
}

// Trace makes a span of each request, as a child of the caller's traceparent. A span names the route, never the path, a
// query, a body or a key. Routes in skip have no span.
func Trace(tracer trace.TracerProvider, skip ...string) gin.HandlerFunc {
	return func(c *gin.Context) {
		route := c.FullPath()
		if route == "" || slices.Contains(skip, route) {
			c.Next()
			return
		}
		ctx := tracing.Remote(c.Request.Context(), c.GetHeader("Traceparent"))
		method := Method(c)
		ctx, end := tracing.Begin(ctx, tracer, method+" "+route, trace.SpanKindServer,
			attribute.String("http.request.method", method), attribute.String("http.route", route), attribute.String("sandfarm.request_id", RequestID(c)))
		defer end(nil)
		c.Request = c.Request.WithContext(ctx)
		c.Next()
		span := trace.SpanFromContext(ctx)
		span.SetAttributes(attribute.Int("http.response.status_code", c.Writer.Status()))
		if c.Writer.Status() >= http.StatusInternalServerError {
			span.SetStatus(codes.Error, "")
		}
	}
}

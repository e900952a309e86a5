package api

import (
	"net/http"
	"slices"

	"github.com/gin-gonic/gin"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/sandfarm/sandfarm/internal/tracing"
)

// trace makes the span of a request, below its caller's traceparent. Only what is counted in metrics too is told: the
// route, never the path, a query, a body or a key.
func (s *Server) trace(c *gin.Context) {
	route := c.FullPath()
	if route == "" || slices.Contains([]string{"/metrics", "/healthz", "/readyz"}, route) { // asked all day long
		c.Next()
		return
	}
	ctx := tracing.Remote(c.Request.Context(), c.GetHeader("Traceparent"))
	method := knownMethod(c.Request.Method)
	ctx, end := tracing.Begin(ctx, s.tracer, method+" "+route, trace.SpanKindServer,
		attribute.String("http.request.method", method), attribute.String("http.route", route), attribute.String("sandfarm.request_id", requestID(c)))
	defer end(nil)
	c.Request = c.Request.WithContext(ctx)
	c.Next()
	span := trace.SpanFromContext(ctx)
	span.SetAttributes(attribute.Int("http.response.status_code", c.Writer.Status()))
	if c.Writer.Status() >= http.StatusInternalServerError {
		span.SetStatus(codes.Error, "")
	}
}

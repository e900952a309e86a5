package rest

import (
	"net/http"
	"slices"

	"github.com/gin-gonic/gin"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/sandfarm/sandfarm/internal/tracing"
)

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

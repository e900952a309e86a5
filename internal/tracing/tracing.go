// Package tracing propagates traces between processes and calls. It knows no exporter: without a span in the context, as on a
// farm that exports none, every function does nothing.
package tracing

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Name is the name of the instrumentation in spans.
const Name = "github.com/sandfarm/sandfarm"

// header is the name of W3C Trace Context, in HTTP and in _meta of MCP.
const header = "traceparent"

// Parent formats the context's span as a traceparent; "" if none is recorded.
func Parent(ctx context.Context) string {
	span := trace.SpanContextFromContext(ctx)
	if !span.IsValid() {
		return ""
	}
	return fmt.Sprintf("00-%s-%s-%s", span.TraceID(), span.SpanID(), span.TraceFlags())
}

// Remote puts the span of a traceparent into the context, as the parent of new spans. A malformed one is ignored.
func Remote(ctx context.Context, parent string) context.Context {
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{header: parent})
}

// Start begins a child of the context's span, with attributes as pairs of name and value. The caller calls end with the
// operation's error.
func Start(ctx context.Context, name string, kind trace.SpanKind, pairs ...string) (context.Context, func(error)) {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return ctx, func(error) {}
	}
	attributes := make([]attribute.KeyValue, 0, len(pairs)/2)
	for i := 0; i+1 < len(pairs); i += 2 {
		attributes = append(attributes, attribute.String(pairs[i], pairs[i+1]))
	}
	return begin(ctx, parent.TracerProvider(), name, kind, attributes)
}

// Adopt begins a child of a traceparent's span and links it to the context's span, if the context has one. A malformed parent, or
// one of the context's own trace, changes nothing.
func Adopt(ctx context.Context, parent, name string) (context.Context, func(error)) {
	own := trace.SpanFromContext(ctx)
	remote := Remote(ctx, parent)
	if !own.IsRecording() || parent == "" || trace.SpanContextFromContext(remote).TraceID() == own.SpanContext().TraceID() {
		return ctx, func(error) {}
	}
	inner, span := own.TracerProvider().Tracer(Name).Start(remote, name, trace.WithSpanKind(trace.SpanKindServer), trace.WithLinks(trace.Link{SpanContext: own.SpanContext()}))
	return inner, end(span)
}

// Begin begins a span of a provider, as a child of the context's span if there is one. With a nil provider it does nothing.
func Begin(ctx context.Context, provider trace.TracerProvider, name string, kind trace.SpanKind, attributes ...attribute.KeyValue) (context.Context, func(error)) {
	if provider == nil {
		return ctx, func(error) {}
	}
	return begin(ctx, provider, name, kind, attributes)
}

// Past records a child span that has ended already, such as one that another process measured.
func Past(ctx context.Context, name string, began, ended time.Time) {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return
	}
	_, span := parent.TracerProvider().Tracer(Name).Start(ctx, name, trace.WithTimestamp(began))
	span.End(trace.WithTimestamp(ended))
}

func begin(ctx context.Context, provider trace.TracerProvider, name string, kind trace.SpanKind, attributes []attribute.KeyValue) (context.Context, func(error)) {
	ctx, span := provider.Tracer(Name).Start(ctx, name, trace.WithSpanKind(kind), trace.WithAttributes(attributes...))
	return ctx, end(span)
}

func end(span trace.Span) func(error) {
	return func(err error) {
		if err != nil {
			span.SetStatus(codes.Error, "") // texts of errors are for the log
		}
		span.End()
	}
}

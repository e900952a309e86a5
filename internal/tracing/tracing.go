// Package tracing carries traces from process to process and from call to call. It knows no exporter: where no span is in
// a context, as on a farm that exports none, every function here does nothing.
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

// Name is what spans name as their maker.
const Name = "github.com/sandfarm/sandfarm"

// header is the name of W3C Trace Context, in HTTP and in _meta of MCP.
const header = "traceparent"

// Parent writes the context's span as a traceparent; "" where none is recorded.
func Parent(ctx context.Context) string {
	span := trace.SpanContextFromContext(ctx)
	if !span.IsValid() {
		return ""
	}
	return fmt.Sprintf("00-%s-%s-%s", span.TraceID(), span.SpanID(), span.TraceFlags())
}

// Remote puts the span of a traceparent into the context, as the parent of spans to come. What cannot be read is nothing.
func Remote(ctx context.Context, parent string) context.Context {
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{header: parent})
}

// Start begins a span below the context's, with attributes by name and value. Its end is the caller's to call, with the
// error that it ended with.
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

// Adopt begins a span below that of a traceparent, where the context has a span at all, to which it is linked. A parent
// that cannot be read, or is the context's trace, changes nothing.
func Adopt(ctx context.Context, parent, name string) (context.Context, func(error)) {
	own := trace.SpanFromContext(ctx)
	remote := Remote(ctx, parent)
	if !own.IsRecording() || parent == "" || trace.SpanContextFromContext(remote).TraceID() == own.SpanContext().TraceID() {
		return ctx, func(error) {}
	}
	inner, span := own.TracerProvider().Tracer(Name).Start(remote, name, trace.WithSpanKind(trace.SpanKindServer), trace.WithLinks(trace.Link{SpanContext: own.SpanContext()}))
	return inner, end(span)
}

// Begin begins a span of a provider, below the context's where it has one. A nil provider begins none.
func Begin(ctx context.Context, provider trace.TracerProvider, name string, kind trace.SpanKind, attributes ...attribute.KeyValue) (context.Context, func(error)) {
	if provider == nil {
		return ctx, func(error) {}
	}
	return begin(ctx, provider, name, kind, attributes)
}

// Past tells of something below the context's span that is over already, such as what another process measured.
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

package telemetry

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
)

// exportTimeout bounds one export, and the flush at the end of the process.
const exportTimeout = 5 * time.Second

// NewTracing makes the provider of spans that are sent to an OTLP collector over HTTP, such as http://127.0.0.1:4318; each
// export, and Shutdown by its caller, is bounded. Spans wait in memory, are sent in batches, and are dropped when the
// collector is slower than they come. A request is traced if its caller's trace is sampled.
func NewTracing(ctx context.Context, endpoint, service, version string) (*trace.TracerProvider, error) {
	exporter, err := otlptrace.New(ctx, newCollector(endpoint))
	if err != nil {
		return nil, fmt.Errorf("make exporter of traces: %w", err)
	}
	about := resource.NewSchemaless(attribute.String("service.name", "sandfarm-"+service), attribute.String("service.version", version))
	return trace.NewTracerProvider(
		trace.WithBatcher(exporter, trace.WithBatchTimeout(time.Second), trace.WithExportTimeout(exportTimeout)),
		trace.WithResource(about), trace.WithSampler(trace.ParentBased(trace.AlwaysSample())),
	), nil
}

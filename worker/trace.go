package worker

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/tracing"
)

// trace starts the span of a claimed job, as a child of the caller's span, and records the time that the job waited.
func (w *Worker) trace(ctx context.Context, job *farm.Job) (context.Context, func(error)) {
	if w.deps.Tracer == nil {
		return ctx, func(error) {}
	}
	ctx = tracing.Remote(ctx, job.Trace)
	if job.Attempt == 1 && !job.StartedAt.IsZero() {
		_, waited := w.deps.Tracer.Tracer(tracing.Name).Start(ctx, "queue", trace.WithTimestamp(job.CreatedAt), trace.WithSpanKind(trace.SpanKindConsumer))
		waited.End(trace.WithTimestamp(maxTime(job.StartedAt, job.CreatedAt)))
	}
	return tracing.Begin(ctx, w.deps.Tracer, "job "+string(job.Kind), trace.SpanKindConsumer,
		attribute.String("sandfarm.job_id", job.ID), attribute.String("sandfarm.sandbox_id", job.SandboxID),
		attribute.String("sandfarm.worker_id", w.id), attribute.Int("sandfarm.attempt", job.Attempt))
}

// maxTime is the later time: clocks of two machines differ.
func maxTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

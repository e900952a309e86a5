package tracing_test

import (
	"errors"
	"testing"
	"time"

	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/internal/tracing"
)

const caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func provider() (*sdk.TracerProvider, *tracetest.SpanRecorder) {
	seen := tracetest.NewSpanRecorder()
	return sdk.NewTracerProvider(sdk.WithSpanProcessor(seen)), seen
}

func TestSpansGoBelowTheCaller(t *testing.T) {
	t.Parallel()
	p, seen := provider()
	ctx, end := tracing.Begin(tracing.Remote(t.Context(), caller), p, "outer", trace.SpanKindServer)
	parent := tracing.Parent(ctx) // as a job's record has it
	elsewhere, endInner := tracing.Begin(tracing.Remote(t.Context(), parent), p, "inner", trace.SpanKindConsumer)
	_, endCall := tracing.Start(elsewhere, "call", trace.SpanKindClient, "url.path", "/v1/x")
	endCall(errors.New("a text that may contain anything"))
	endInner(nil)
	end(nil)
	above := "b7ad6b7169203331"
	for _, name := range []string{"outer", "inner", "call"} {
		for _, s := range seen.Ended() {
			if s.Name() != name {
				continue
			}
			if s.SpanContext().TraceID().String() != "0af7651916cd43dd8448eb211c80319c" || s.Parent().SpanID().String() != above {
				t.Errorf("%s is in trace %s below %s, want it below %s", name, s.SpanContext().TraceID(), s.Parent().SpanID(), above)
			}
			if n := len(s.Attributes()); name == "call" && (n != 1 || s.Attributes()[0].Value.AsString() != "/v1/x") {
				t.Errorf("%s has attributes %v", name, s.Attributes())
			}
			if failed := s.Status().Code == codes.Error; failed != (name == "call") || s.Status().Description != "" {
				t.Errorf("%s ended with %+v", name, s.Status())
			}
			above = s.SpanContext().SpanID().String()
		}
	}
	testbed.Diff(t, "spans", 3, len(seen.Ended()))
}

func TestAdoptTakesTheParentOfACall(t *testing.T) {
	t.Parallel()
	p, seen := provider()
	request, end := tracing.Begin(t.Context(), p, "POST /mcp", trace.SpanKindServer)
	call, endCall := tracing.Adopt(request, caller, "tool")
	same, endSame := tracing.Adopt(call, caller, "again")
	if same != call {
		t.Error("the context's own trace was adopted")
	}
	endSame(nil)
	endCall(nil)
	for _, none := range []string{"", "rubbish", "00-zz-zz-01", "00-00000000000000000000000000000000-0000000000000000-01"} {
		if ctx, end := tracing.Adopt(request, none, "none"); none == "" && ctx != request || none != "" && trace.SpanContextFromContext(ctx).TraceID().IsValid() == false {
			t.Errorf("%q breaks the trace", none)
		} else {
			end(nil)
		}
	}
	end(nil)
	tool := seen.Ended()[0]
	if tool.Name() != "tool" || tool.Parent().SpanID().String() != "b7ad6b7169203331" || len(tool.Links()) != 1 ||
		tool.Links()[0].SpanContext.SpanID() != trace.SpanContextFromContext(request).SpanID() {
		t.Errorf("span %s below %s with links %v", tool.Name(), tool.Parent().SpanID(), tool.Links())
	}
}

func TestPastHasTheTimesItIsGiven(t *testing.T) {
	t.Parallel()
	p, seen := provider()
	ctx, end := tracing.Begin(t.Context(), p, "job", trace.SpanKindConsumer)
	ended := time.Now()
	began := ended.Add(-time.Minute)
	tracing.Past(ctx, "run", began, ended)
	end(nil)
	run := seen.Ended()[0]
	if run.Name() != "run" || run.Parent().SpanID() != trace.SpanContextFromContext(ctx).SpanID() || !run.StartTime().Equal(began) || !run.EndTime().Equal(ended) {
		t.Errorf("span %s below %s from %s to %s", run.Name(), run.Parent().SpanID(), run.StartTime(), run.EndTime())
	}
	tracing.Past(t.Context(), "without a parent", began, ended)
	testbed.Diff(t, "spans", 2, len(seen.Ended()))
}

func TestNothingWithoutASpan(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	if tracing.Parent(ctx) != "" {
		t.Error("no span has a parent")
	}
	started, end := tracing.Start(ctx, "x", trace.SpanKindClient)
	end(nil)
	check(t, started == ctx)
	begun, end := tracing.Begin(ctx, nil, "x", trace.SpanKindClient)
	end(nil)
	check(t, begun == ctx)
	adopted, end := tracing.Adopt(ctx, caller, "x")
	end(nil)
	check(t, adopted == ctx)
}

func check(t *testing.T, same bool) {
	t.Helper()
	if !same {
		t.Error("the context is another one")
	}
}

// BenchmarkOff measures one call on a farm that exports nothing: a lookup in the context.
func BenchmarkOff(b *testing.B) {
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		inner, end := tracing.Start(ctx, "agent", trace.SpanKindClient, "http.request.method", "GET", "url.path", "/v1/x")
		_ = tracing.Parent(inner)
		end(nil)
	}
}

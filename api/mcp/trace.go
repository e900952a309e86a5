package mcp

import (
	"context"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/sandfarm/sandfarm/internal/tracing"
)

// startSpan starts the span of a tool call below the traceparent in the call's _meta, if the farm exports traces. The returned
// function ends the span.
func startSpan(ctx context.Context, meta *mcp.Meta, tool string) (context.Context, func(error)) {
	if meta == nil {
		return ctx, func(error) {}
	}
	parent, _ := meta.AdditionalFields["traceparent"].(string)
	return tracing.Adopt(ctx, parent, "tools/call "+tool)
}

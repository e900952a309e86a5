package mcp

import (
	"context"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/sandfarm/sandfarm/internal/tracing"
)

// adopt begins the span of a tool's call below the traceparent that the call's _meta has, on a farm that traces. What it
// gives second ends the span.
func adopt(ctx context.Context, meta *mcp.Meta, tool string) (context.Context, func(error)) {
	if meta == nil {
		return ctx, func(error) {}
	}
	parent, _ := meta.AdditionalFields["traceparent"].(string)
	return tracing.Adopt(ctx, parent, "tools/call "+tool)
}

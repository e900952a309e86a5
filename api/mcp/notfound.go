package mcp

import (
	"context"
	"errors"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
)

// nameMissing adds the URI to the error for a missing resource, as revision 2026-07-28 requires; mcp-go only has it in the text.
// For clients of older revisions nothing changes.
func nameMissing(m *server.MCPServer) {
	hooks := m.GetHooks()
	if hooks == nil {
		hooks = &server.Hooks{}
		server.WithHooks(hooks)(m)
	}
	hooks.AddOnError(func(ctx context.Context, _ any, _ mcp.MCPMethod, message any, err error) {
		read, ok := message.(*mcp.ReadResourceRequest)
		d := deliveryOf(ctx)
		if !ok || d == nil || !server.IsModernRequest(ctx) || !errors.Is(err, server.ErrResourceNotFound) {
			return
		}
		d.refuse(mcp.JSONRPCErrorDetails{Code: mcp.INVALID_PARAMS, Message: err.Error(), Data: map[string]any{"uri": read.Params.URI}})
	})
}

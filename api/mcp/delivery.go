package mcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
)

// delivery counts the notifications of a request: those that were sent and those that are written. mcp-go hands them to
// a goroutine that drops what it holds when the handler returns, so the handler waits until all of them are out.
type delivery struct {
	sending sync.Mutex // keeps the order of counting that of sending

	mu      sync.Mutex
	sent    int
	written int
	rose    chan struct{} // closed and replaced whenever written rises

	one     bool                     // it belongs to one request, not to a whole connection
	refusal *mcp.JSONRPCErrorDetails // replaces the response, see refuse
}

type deliveryKey struct{}

func newDelivery() *delivery { return &delivery{rose: make(chan struct{})} }

func withDelivery(ctx context.Context, d *delivery) context.Context {
	return context.WithValue(ctx, deliveryKey{}, d)
}

func deliveryOf(ctx context.Context) *delivery {
	d, _ := ctx.Value(deliveryKey{}).(*delivery)
	return d
}

func (d *delivery) wrote() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.written++
	close(d.rose)
	d.rose = make(chan struct{})
}

// flush waits until everything that was sent so far is written, or the caller has gone.
func (d *delivery) flush(ctx context.Context) {
	d.mu.Lock()
	want := d.sent
	for d.written < want {
		rose := d.rose
		d.mu.Unlock()
		select {
		case <-rose:
		case <-ctx.Done():
			return
		}
		d.mu.Lock()
	}
	d.mu.Unlock()
}

// refuse makes an error of the protocol the response: handlers of mcp-go cannot choose its code. Where the delivery is
// that of a connection, the handler's own error is what the caller gets.
func (d *delivery) refuse(e mcp.JSONRPCErrorDetails) {
	if !d.one {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refusal = &e
}

func (d *delivery) refused() *mcp.JSONRPCErrorDetails {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.refusal
}

// Notify sends a notification to the caller of a request, and to nobody else. Unlike mcp-go's own way it never drops
// one: it waits for room. It fails when the caller has gone. Where there is no way to notify, it does nothing.
func Notify(ctx context.Context, method string, params map[string]any) error {
	session, d := server.ClientSessionFromContext(ctx), deliveryOf(ctx)
	if session == nil || d == nil {
		return nil
	}
	note := mcp.JSONRPCNotification{
		JSONRPC:      mcp.JSONRPC_VERSION,
		Notification: mcp.Notification{Method: method, Params: mcp.NotificationParams{AdditionalFields: params}},
	}
	d.sending.Lock()
	defer d.sending.Unlock()
	select {
	case session.NotificationChannel() <- note:
		d.mu.Lock()
		defer d.mu.Unlock()
		d.sent++
		return nil
	case <-ctx.Done():
		return fmt.Errorf("notify caller: %w", ctx.Err())
	}
}

// delivered is the tool middleware that makes a call return only when its notifications are out.
func delivered(next server.ToolHandlerFunc) server.ToolHandlerFunc {
	return func(ctx context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		d := deliveryOf(ctx)
		if d == nil {
			return next(ctx, r)
		}
		result, err := next(ctx, r)
		d.flush(ctx)
		if missing, ok := errors.AsType[mcp.MissingRequiredClientCapabilityError](err); ok {
			d.refuse(mcp.JSONRPCErrorDetails{
				Code: mcp.MISSING_REQUIRED_CLIENT_CAPABILITY, Message: missing.Error(),
				Data: map[string]any{"capability": missing.Capability, "requiredCapabilities": map[string]any{missing.Capability: map[string]any{}}},
			})
		}
		return result, err
	}
}

// acknowledged keeps the acknowledgement of a subscription from being lost: mcp-go sends it just before it answers, since
// there is nothing of this server to subscribe to.
func acknowledged() *server.Hooks {
	hooks := &server.Hooks{}
	hooks.AddOnSuccess(func(ctx context.Context, _ any, method mcp.MCPMethod, _, _ any) {
		if d := deliveryOf(ctx); d != nil && d.one && method == methodListen {
			d.flush(ctx)
		}
	})
	return hooks
}

// countedLines counts the notifications among the lines that go to a client over stdio.
type countedLines struct {
	w        io.Writer
	delivery *delivery
}

// Write writes one message.
func (c *countedLines) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	if bytes.HasPrefix(p, []byte(`{"jsonrpc":"2.0","method":`)) {
		c.delivery.wrote()
	}
	return n, err //nolint:wrapcheck // passed on as it is
}

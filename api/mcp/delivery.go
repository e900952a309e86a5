package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
)

// delivery counts the notifications of a request: those sent and those written. mcp-go passes them to a goroutine that drops
// pending ones when the handler returns, so the handler waits until all of them are written.
type delivery struct {
	sending sync.Mutex // so that notifications are counted in the order in which they are sent

	mu      sync.Mutex
	sent    int
	written int
	rose    chan struct{} // closed and replaced whenever written increases

	one     bool                     // the delivery belongs to one request, not to a connection
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

// flush waits until everything sent so far is written, or the caller disconnects.
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

// refuse replaces the response by an error of the protocol, because handlers of mcp-go cannot choose its code. It does nothing if
// the delivery belongs to a connection: then the caller gets the handler's own error.
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

// Notify sends a notification to the caller of a request only. Unlike mcp-go's own function it never drops one: it waits until
// there is room. It returns an error if the caller has disconnected, and does nothing if the transport has no notifications.
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

// delivered is tool middleware: a call returns only after its notifications are written.
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

// acknowledged keeps the acknowledgement of a subscription from being lost. This server has nothing to subscribe to, so mcp-go
// answers right after it sends the acknowledgement.
func acknowledged() *server.Hooks {
	hooks := &server.Hooks{}
	hooks.AddOnSuccess(func(ctx context.Context, _ any, method mcp.MCPMethod, _, _ any) {
		if d := deliveryOf(ctx); d != nil && d.one && method == methodListen {
			d.flush(ctx)
		}
	})
	return hooks
}

// countedLines counts the notifications among the lines written to a client over stdio.
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
	return n, err
}

// writer counts the written messages of a stream, closes the connection of a caller that does not read, and replaces the response by
// the delivery's refusal.
type writer struct {
	w        http.ResponseWriter
	control  *http.ResponseController
	delivery *delivery
	id       json.RawMessage
	timeout  time.Duration
	replaced bool
}

// Header gives the headers of the answer.
func (w *writer) Header() http.Header { return w.w.Header() }

// Unwrap gives the writer behind this one.
func (w *writer) Unwrap() http.ResponseWriter { return w.w }

// WriteHeader begins the answer.
func (w *writer) WriteHeader(status int) {
	if w.delivery.refused() != nil && !w.streams() {
		status = http.StatusBadRequest
	}
	w.w.WriteHeader(status)
}

func (w *writer) streams() bool {
	return strings.HasPrefix(w.Header().Get("Content-Type"), "text/event-stream")
}

// Write writes one message: mcp-go passes each in one call.
func (w *writer) Write(p []byte) (int, error) {
	if refusal := w.delivery.refused(); refusal != nil {
		return w.replace(p, *refusal)
	}
	n, err := w.send(p)
	if w.streams() {
		w.delivery.wrote()
	}
	return n, err
}

// replace writes the refusal once, in place of everything else.
func (w *writer) replace(p []byte, refusal mcp.JSONRPCErrorDetails) (int, error) {
	if w.replaced {
		return len(p), nil
	}
	w.replaced = true
	text, err := json.Marshal(failure(w.id, refusal))
	if err != nil {
		return 0, err
	}
	if w.streams() {
		text = bytes.Join([][]byte{[]byte("event: message\ndata: "), text, []byte("\n\n")}, nil)
	}
	if _, err := w.send(text); err != nil {
		return 0, err
	}
	return len(p), nil
}

// send writes with a deadline, if the connection supports one.
func (w *writer) send(p []byte) (int, error) {
	_ = w.control.SetWriteDeadline(time.Now().Add(w.timeout + time.Duration(len(p)>>20)*time.Second))
	defer func() { _ = w.control.SetWriteDeadline(time.Time{}) }()
	return w.w.Write(p)
}

// Flush sends what is buffered.
func (w *writer) Flush() {
	_ = w.control.SetWriteDeadline(time.Now().Add(w.timeout))
	defer func() { _ = w.control.SetWriteDeadline(time.Time{}) }()
	_ = w.control.Flush() // an error means that the caller disconnected
}

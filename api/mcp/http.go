package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/sandfarm/sandfarm/api/guard"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Methods that the transport handles itself.
const (
	methodCancelled = "notifications/cancelled"
	methodListen    = "subscriptions/listen"
)

// discardBytes is how much of a refused body is read, so that a caller that is still sending receives the answer.
const discardBytes = 64 << 20

// heldWeight is how often a body stays in memory until its call ends: as it came, and decoded.
const heldWeight = 2

// transport wraps mcp-go's streamable HTTP and adds what it lacks: guards, limits, reliable notifications.
type transport struct {
	HTTP
	next http.Handler
}

// NewHandler serves an MCP server over streamable HTTP, to clients of all revisions on one address and without sessions, so that
// callers cannot see each other. It refuses pages of foreign origins, bodies over the limit and methods other than POST. It ignores
// cancellations by request id, which anyone could send for another caller's request, and loses no notification of Notify. A nil
// logger logs nothing.
func NewHandler(m *server.MCPServer, o HTTP, logger *slog.Logger) http.Handler {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	m.Use(fitted, delivered)
	nameMissing(m)
	t := &transport{HTTP: o.withDefaults()}
	t.next = t.counted(server.NewStreamableHTTPServer(m,
		server.WithStateLess(true), server.WithDisableStreaming(true),
		server.WithDisableLocalhostProtection(true), // admit checks the host, with the trusted names
		server.WithStreamableHTTPLogger(quietly(logger)),
	))
	for _, extension := range slices.Backward(t.Extensions) {
		t.next = extension(m, t.next)
	}
	return t
}

// head is what the transport reads of a message.
type head struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
}

// ServeHTTP answers one message.
func (t *transport) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !t.admit(w, r) {
		return
	}
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		refuse(w, http.StatusMethodNotAllowed, mcp.INVALID_REQUEST, "Send messages by POST: this server has no sessions and no stream to GET.")
		return
	}
	body, err := t.read(r)
	if err != nil {
		refuseBody(w, err)
		return
	}
	if bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("[")) {
		refuse(w, http.StatusBadRequest, mcp.INVALID_REQUEST, "This server takes no JSON-RPC batches: send each message in a request of its own.")
		return
	}
	ctx := r.Context()
	message, err := decoding(ctx, body)
	if err != nil {
		refuseBody(w, err)
		return
	}
	defer budget.LeaveCore(ctx)
	w = answering{w, ctx}
	if message.Method == methodCancelled {
		w.WriteHeader(http.StatusAccepted) // see NewHandler
		return
	}
	if message.Method == methodListen && t.Closing != nil {
		var end context.CancelFunc
		ctx, end = context.WithCancel(ctx)
		watched := make(chan struct{})
		go func() {
			defer close(watched)
			select {
			case <-t.Closing:
				end()
			case <-ctx.Done():
			}
		}()
		defer func() { end(); <-watched }()
	}
	r = r.WithContext(context.WithValue(ctx, headKey{}, message))
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	r.Header.Del(server.HeaderKeySessionID) // there are no sessions to name
	w.Header().Set("X-Accel-Buffering", "no")
	t.next.ServeHTTP(w, r)
}

// admit refuses requests with a foreign host name or from a page of a foreign origin.
func (h HTTP) admit(w http.ResponseWriter, r *http.Request) bool {
	switch {
	case !h.AnyHost && guard.OverLoopback(r) && !h.guard().Host(r.Host):
		refuse(w, http.StatusForbidden, mcp.INVALID_REQUEST, "This server does not answer under the name in the Host header. Use http://127.0.0.1 or http://localhost.")
		return false
	case !h.guard().Origin(r):
		refuse(w, http.StatusForbidden, mcp.INVALID_REQUEST, "Pages of this origin may not call this server.")
		return false
	}
	return true
}

// answering is an answer that is written without the core on which it was encoded (budget.LeaveCore): the caller may read slowly.
type answering struct {
	http.ResponseWriter
	ctx context.Context // of the request
}

// Write implements io.Writer.
func (a answering) Write(p []byte) (int, error) {
	budget.LeaveCore(a.ctx)
	return a.ResponseWriter.Write(p)
}

// Unwrap gives the writer behind this one.
func (a answering) Unwrap() http.ResponseWriter { return a.ResponseWriter }

type headKey struct{}

const (
	// maxMessageBytes bounds a message that calls no tool.
	maxMessageBytes = budget.SmallBytes
	// maxIDBytes bounds the id of a message, which its answer repeats.
	maxIDBytes = 1 << 10
)

// decoding charges what a message takes decoded, until its call ends, and reads its head. mcp-go decodes a message several times (8 MB took a core for
// 1.3 s), so a large one has a core of the tenant's until its tool runs (budget.LeaveCore).
func decoding(ctx context.Context, text []byte) (message head, err error) {
	if _, err = budget.Decoding(ctx, len(text), func() int { return budget.Values(text) }); err != nil {
		return head{}, err
	}
	if err = budget.Pin(ctx, budget.Held(ctx)-int64(len(text))*(budget.BodyWeight-heldWeight)); err != nil { // never: it is held
		budget.LeaveCore(ctx)
		return head{}, err
	}
	bad := json.Unmarshal(text, &message) // mcp-go answers what cannot be parsed
	if len(message.ID) > maxIDBytes {
		budget.LeaveCore(ctx)
		return head{}, farm.Errorf(farm.CodeTooLarge, "The id of a message may have %d bytes.", maxIDBytes)
	}
	if len(text) > maxMessageBytes && bad == nil && message.Method != string(mcp.MethodToolsCall) {
		budget.LeaveCore(ctx)
		return head{}, farm.Errorf(farm.CodeTooLarge, "A message that calls no tool may have %d bytes.", maxMessageBytes)
	}
	return message, nil
}

// counted is the innermost wrapper, directly around mcp-go's handler.
func (t *transport) counted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		message, _ := r.Context().Value(headKey{}).(head)
		d := newDelivery()
		d.one = true
		if message.Method == methodListen {
			d.sent = 1 // the acknowledgement, see acknowledged
		}
		out := &writer{w: w, control: http.NewResponseController(w), delivery: d, id: message.ID, timeout: t.WriteTimeout}
		next.ServeHTTP(out, r.WithContext(withDelivery(r.Context(), d)))
	})
}

var errTooLarge = errors.New("the body is too large")

// read reads the whole body, up to the limit.
func (h HTTP) read(r *http.Request) ([]byte, error) {
	body, err := budget.ReadAll(r.Context(), r.Body, r.ContentLength, h.MaxBodyBytes)
	if err == nil {
		return body, nil
	}
	switch {
	case farm.CodeOf(err) == farm.CodeExhausted:
		return nil, err
	case !errors.Is(err, budget.ErrTooLong):
		return nil, errors.New("the body ended before it was complete")
	}
	_, _ = io.CopyN(io.Discard, r.Body, discardBytes)
	return nil, fmt.Errorf("%w: it may have %d bytes; send large files by PUT /v1/sandboxes/{id}/files/{path}", errTooLarge, h.MaxBodyBytes)
}

// refuseBody answers that a body cannot be read.
func refuseBody(w http.ResponseWriter, err error) {
	status, code := http.StatusBadRequest, mcp.PARSE_ERROR
	switch {
	case errors.Is(err, errTooLarge), farm.CodeOf(err) == farm.CodeTooLarge:
		status, code = http.StatusRequestEntityTooLarge, mcp.INVALID_REQUEST
	case farm.CodeOf(err) == farm.CodeExhausted:
		status, code = http.StatusTooManyRequests, mcp.INVALID_REQUEST
		w.Header().Set("Retry-After", "5")
	}
	refuse(w, status, code, err.Error())
}

// refuse answers with a JSON-RPC error that belongs to no request.
func refuse(w http.ResponseWriter, status, code int, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(failure(nil, mcp.JSONRPCErrorDetails{Code: code, Message: text})) // an error means that the caller disconnected
}

// failure is a JSON-RPC error; without an id, or with one that is too long, it belongs to no request.
func failure(id json.RawMessage, details mcp.JSONRPCErrorDetails) any {
	if len(id) == 0 || len(id) > maxIDBytes {
		id = json.RawMessage("null")
	}
	return struct {
		JSONRPC string                  `json:"jsonrpc"`
		ID      json.RawMessage         `json:"id"`
		Error   mcp.JSONRPCErrorDetails `json:"error"`
	}{mcp.JSONRPC_VERSION, id, details}
}

func (h HTTP) guard() guard.Guard { return guard.Guard{Hosts: h.Hosts, Origins: h.Origins} }

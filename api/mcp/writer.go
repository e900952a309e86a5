package mcp

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
)

// writer counts the written messages of a stream, closes the connection of a caller that does not read, and replaces the response by
// the delivery's refusal.
type writer struct {
	w        http.ResponseWriter
	control  *http.ResponseController
	delivery *delivery
	id       json.RawMessage
	patience time.Duration
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
	_ = w.control.SetWriteDeadline(time.Now().Add(w.patience + time.Duration(len(p)>>20)*time.Second))
	defer func() { _ = w.control.SetWriteDeadline(time.Time{}) }()
	return w.w.Write(p)
}

// Flush sends what is buffered.
func (w *writer) Flush() {
	_ = w.control.SetWriteDeadline(time.Now().Add(w.patience))
	defer func() { _ = w.control.SetWriteDeadline(time.Time{}) }()
	_ = w.control.Flush() // an error means that the caller disconnected
}

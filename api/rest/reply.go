package rest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"strconv"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
)

// Reply answers with JSON. Its error is always nil, so that a handler can end with it.
func Reply(c *gin.Context, status int, v any) error {
	WriteJSON(c, status, "application/json; charset=utf-8", v)
	return nil
}

// NoContent answers 204. Its error is always nil, so that a handler can end with it.
func NoContent(c *gin.Context) error {
	c.Status(http.StatusNoContent)
	c.Writer.WriteHeaderNow()
	return nil
}

// WriteJSON answers with JSON of a media type. It panics on a value that cannot be encoded.
func WriteJSON(c *gin.Context, status int, contentType string, v any) {
	var text bytes.Buffer
	encode(c.Request.Context(), &text, v)
	h := c.Writer.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(text.Len()))
	c.Status(status)
	_, _ = c.Writer.Write(text.Bytes()) // on an error the caller has left
}

// encode appends a value as JSON, on a core of its tenant's if the request holds many bytes: what it answers with is charged. It panics on a value that
// cannot be encoded.
func encode(ctx context.Context, text *bytes.Buffer, v any) {
	if leave, err := budget.Core(ctx, int(budget.Held(ctx))); err == nil { // otherwise the caller has left
		defer leave()
	}
	encoder := json.NewEncoder(text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		panic(fmt.Sprintf("encode %T: %v", v, err)) // our own types always encode; Recover answers 500
	}
}

// listChunk is how much of a list is written at once.
const listChunk = 64 << 10

// ReplyList answers with an object whose only field is a list, and writes the items as they come, so that a long list is never in memory
// whole. It stops when the caller has left.
func ReplyList(c *gin.Context, status int, field string, items iter.Seq[any]) {
	c.Writer.Header().Set("Content-Type", "application/json; charset=utf-8")
	c.Status(status)
	text := bytes.NewBufferString(`{"` + field + `":[`)
	separator := ""
	for item := range items {
		text.WriteString(separator)
		separator = ","
		encode(c.Request.Context(), text, item)
		if text.Len() < listChunk {
			continue
		}
		if _, err := c.Writer.Write(text.Bytes()); err != nil {
			return
		}
		*text = bytes.Buffer{} // an item may be large
	}
	text.WriteString("]}\n")
	_, _ = c.Writer.Write(text.Bytes()) // on an error the caller has left
}

// EventStream is an answer of server-sent events.
type EventStream struct{ out http.ResponseWriter }

// OpenEventStream sends the headers and a first comment, so that the caller knows that the stream is open. An error
// means that the caller has disconnected.
func OpenEventStream(c *gin.Context, comment string) (*EventStream, error) {
	h := c.Writer.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no")
	c.Status(http.StatusOK)
	return &EventStream{c.Writer}, Send(c.Writer, []byte(": "+comment+"\n\n"))
}

// Send writes a part of an answer, and sends it now. A client that takes nothing of it for a while has left, see httpserver.Config.
func Send(w http.ResponseWriter, part []byte) error {
	if _, err := w.Write(part); err != nil {
		return fmt.Errorf("write answer: %w", err)
	}
	if err := http.NewResponseController(w).Flush(); err != nil {
		return fmt.Errorf("flush answer: %w", err)
	}
	return nil
}

// Send sends events, or a keep-alive comment if there are none. An error means that the caller has disconnected.
func (s *EventStream) Send(events []wire.Event) error {
	var text bytes.Buffer
	for _, e := range events {
		fmt.Fprintf(&text, "id: %s\nevent: %s\ndata: %s\n\n", e.ID, e.Name, e.Data)
	}
	if len(events) == 0 {
		text.WriteString(": still here\n\n")
	}
	return Send(s.out, text.Bytes())
}

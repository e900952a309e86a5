package rest

import (
	"bytes"
	"fmt"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/wire"
)

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

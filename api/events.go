package api

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"

	"github.com/gin-gonic/gin"
)

// events streams a job's events until its final state. A header or query names the event to go on after.
func (s *Server) events(c *gin.Context) error {
	ctx := c.Request.Context()
	after := c.GetHeader("Last-Event-ID")
	if after == "" {
		after = c.Query("after")
	}
	reader, err := s.service.Events(ctx, tenant(c), c.Param("id"), after)
	if err != nil {
		return err
	}
	defer reader.Close()
	h := c.Writer.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no")
	c.Status(http.StatusOK)
	out := newPatient(c)
	if err := out.send([]byte(": events of " + c.Param("id") + "\n\n")); err != nil {
		return nil //nolint:nilerr // the reader has gone
	}
	for {
		events, err := reader.Next(ctx, s.cfg.Heartbeat)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			s.log.WarnContext(ctx, "event stream broke off", slog.String("request_id", requestID(c)), slog.Any("error", err))
			panic(http.ErrAbortHandler) // the reader comes back with its last id
		}
		var text bytes.Buffer
		for _, e := range events {
			fmt.Fprintf(&text, "id: %s\nevent: %s\ndata: %s\n\n", e.ID, e.Name, e.Data)
		}
		if len(events) == 0 {
			text.WriteString(": still here\n\n")
		}
		if err := out.send(text.Bytes()); err != nil {
			return nil //nolint:nilerr // the reader has gone
		}
	}
}

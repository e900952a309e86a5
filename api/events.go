package api

import (
	"errors"
	"io"
	"log/slog"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/internal/budget"
)

// events streams the events of a job until its final state. A header or query names the last event that the caller has.
func (s *Server) events(c *gin.Context) error {
	ctx := c.Request.Context()
	after := c.GetHeader("Last-Event-ID")
	if after == "" {
		after = c.Query("after")
	}
	reader, err := s.service.Events(ctx, rest.Tenant(c), c.Param("id"), after)
	if err != nil {
		return err
	}
	defer reader.Close()
	stream, err := rest.OpenEventStream(c, "events of "+c.Param("id"))
	if err != nil {
		return nil //nolint:nilerr // the caller has left
	}
	for {
		events, err := reader.Next(ctx, s.cfg.Heartbeat)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			s.log.WarnContext(ctx, "event stream broke off", slog.String("request_id", rest.RequestID(c)), slog.Any("error", err))
			panic(http.ErrAbortHandler) // the caller reconnects with its last id
		}
		if err := stream.Send(events); err != nil {
			return nil //nolint:nilerr // the caller has left
		}
		budget.Keep(ctx, 0) // what is sent is not held
	}
}

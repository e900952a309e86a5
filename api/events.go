package api

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
)

// events streams the events of a job until its final state.
func (s *Server) events(c *gin.Context) error {
	ctx := c.Request.Context()
	reader, err := s.service.Events(ctx, rest.Tenant(c), c.Param("id"), lastEvent(c))
	if err != nil {
		return err
	}
	if err := s.sendEvents(c, reader, "events of "+c.Param("id")); err != nil {
		s.log.WarnContext(ctx, "event stream broke off", slog.String("request_id", rest.RequestID(c)), slog.Any("error", err))
		panic(http.ErrAbortHandler) // the caller reconnects with its last id
	}
	return nil
}

// lastEvent is the id of the last event that the caller has, which a header or the query names; "": none.
func lastEvent(c *gin.Context) string {
	if after := c.GetHeader("Last-Event-ID"); after != "" {
		return after
	}
	return c.Query("after")
}

// eventReader reads a stream of events. Next returns none if nothing came within timeout, and io.EOF at the end.
type eventReader interface {
	Next(ctx context.Context, timeout time.Duration) ([]wire.Event, error)
	Close()
}

// sendEvents answers with all events of a reader, and closes it. An error means that the reader has failed; that the caller has left is none.
func (s *Server) sendEvents(c *gin.Context, reader eventReader, comment string) error {
	defer reader.Close()
	stream, err := rest.OpenEventStream(c, comment)
	if err != nil {
		return nil // the caller has left
	}
	ctx := c.Request.Context()
	for {
		events, err := reader.Next(ctx, s.cfg.Heartbeat)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := stream.Send(events); err != nil {
			return nil // the caller has left
		}
		budget.Keep(ctx, 0) // what is sent is not held
	}
}

package ports

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/guard"
	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// forwardPort connects a WebSocket to a port. As those of attachProcess, it is not for pages of other origins.
func (s *Server) forwardPort(c *gin.Context) error {
	if own := (guard.Guard{Hosts: s.Hosts}); !own.Origin(c.Request) {
		return rest.Refusef(http.StatusForbidden, farm.CodeUnauthorized, "Pages of other origins may not connect to ports.")
	}
	ctx := c.Request.Context()
	port, err := s.Service.Port(ctx, rest.Tenant(c), c.Param("id"), c.Param("port"))
	if err != nil {
		return err
	}
	if !rest.Upgrades(c.Request) {
		c.Header("Upgrade", "websocket")
		return rest.Refusef(http.StatusUpgradeRequired, farm.CodeInvalid, "This address serves WebSockets only. For HTTP use %s.", "…/ports/{port}/")
	}
	conn, err := port.Dial(ctx)
	if err != nil {
		return portError(ctx, port.Number, err)
	}
	defer func() { _ = conn.Close() }()
	ws, err := rest.AcceptWebSocket(c.Writer, c.Request, nil)
	if err != nil {
		return nil // it has answered
	}
	defer func() { _ = ws.CloseNow() }()
	s.forwards.Add(1) // the HTTP server does not wait for connections that it has given away
	defer s.forwards.Done()
	ws.SetReadLimit(wire.MaxForwardBytes)
	ctx, done := context.WithCancel(ctx)
	defer done()
	go func() {
		select {
		case <-s.Closing:
			done()
		case <-ctx.Done():
		}
	}()
	caller := &forwarded{ws: ws, conn: conn, stall: s.Stall, ended: make(chan error, 1)}
	go caller.read(ctx)
	go caller.ping(ctx, s.Heartbeat, s.Stall)
	err = forwardOut(ctx, ws, conn, s.Stall)
	if err == nil {
		err = <-caller.ended
	}
	status := websocket.StatusNormalClosure
	if err != nil {
		status = websocket.StatusInternalError
	}
	_ = ws.Close(status, "")
	return nil
}

// forwarded is the caller's direction of a connection.
type forwarded struct {
	ws      *rest.WebSocket
	conn    net.Conn
	stall   time.Duration
	ended   chan error  // gets the end of the direction
	writing atomic.Bool // the sandbox takes its time, and meanwhile answers to pings are not seen
}

// read passes messages on until an empty one has ended the direction, and continues reading then: pings are answered, and the caller may leave.
func (f *forwarded) read(ctx context.Context) {
	err := f.pass(ctx)
	if err != nil {
		_ = f.conn.Close() // the caller is gone, or at fault
	}
	f.ended <- err
	if err == nil {
		_, _, _ = f.ws.Read(ctx, wire.MaxForwardBytes, f.stall)
		_ = f.conn.Close()
	}
}

func (f *forwarded) pass(ctx context.Context) error {
	for {
		kind, data, err := f.ws.Read(ctx, wire.MaxForwardBytes+1, f.stall)
		if err != nil {
			return err
		}
		if kind != websocket.MessageBinary {
			return errors.New("a message is not binary")
		}
		if len(data) == 0 {
			return f.conn.(interface{ CloseWrite() error }).CloseWrite() //nolint:errcheck // all connections to ports have it
		}
		f.writing.Store(true)
		_, err = f.conn.Write(data)
		f.writing.Store(false)
		if err != nil {
			return err
		}
	}
}

// ping closes the connection of a caller who is gone without a word.
func (f *forwarded) ping(ctx context.Context, every, stall time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		bounded, done := context.WithTimeout(ctx, stall)
		err := f.ws.Ping(bounded)
		done()
		if err != nil && (!f.writing.Load() || !errors.Is(err, context.DeadlineExceeded)) {
			_ = f.conn.Close()
			return
		}
	}
}

// forwardOut sends what a connection carries, and an empty message at its end.
func forwardOut(ctx context.Context, ws *rest.WebSocket, conn net.Conn, stall time.Duration) error {
	buf := make([]byte, wire.MaxForwardBytes/2)
	for {
		n, err := conn.Read(buf)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if n > 0 || err != nil {
			bounded, done := context.WithTimeout(ctx, stall)
			failed := ws.Write(bounded, websocket.MessageBinary, buf[:n])
			done()
			if failed != nil || err != nil {
				return failed
			}
		}
	}
}

package client

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"

	"github.com/coder/websocket"

	"github.com/sandfarm/sandfarm/api/wire"
)

// Ports lists the ports on which programs of a sandbox listen.
func (c *Client) Ports(ctx context.Context, sandboxID string) ([]wire.Port, error) {
	var got wire.Ports
	err := c.json(ctx, call{method: http.MethodGet, path: sandboxPath(sandboxID, "ports")}, &got)
	return got.Items, err
}

// LinkPort makes a link to a port, which needs no key.
func (c *Client) LinkPort(ctx context.Context, sandboxID string, request wire.PortLinkRequest) (wire.PortLink, error) {
	var got wire.PortLink
	err := c.json(ctx, call{method: http.MethodPost, path: sandboxPath(sandboxID, "port-links"), body: request, once: true}, &got)
	return got, err
}

// Forward connects conn to a port of a sandbox and carries bytes both ways until both directions have ended. It closes conn. An error of the
// farm says why there is no connection, such as that nothing listens.
func (c *Client) Forward(ctx context.Context, sandboxID string, port int, conn net.Conn) error {
	to, err := c.DialPort(ctx, sandboxID, port)
	if err != nil {
		_ = conn.Close()
		return err
	}
	return to.Carry(ctx, conn)
}

// PortConn is a connection to a port of a sandbox. Carry or Close ends it.
type PortConn struct{ ws *websocket.Conn }

// DialPort connects to a port of a sandbox. ctx bounds the dial alone. An error of the farm says why there is no connection, such as that nothing listens.
func (c *Client) DialPort(ctx context.Context, sandboxID string, port int) (*PortConn, error) {
	header := http.Header{"User-Agent": {c.userAgent}}
	if c.key != "" {
		header.Set("Authorization", "Bearer "+c.key)
	}
	ws, answer, err := websocket.Dial(ctx, c.at(call{path: sandboxPath(sandboxID, "tcp", strconv.Itoa(port))}).String(), &websocket.DialOptions{HTTPClient: c.http, HTTPHeader: header}) //nolint:bodyclose // Dial has read what there is
	if err != nil && answer != nil {
		defer func() { _ = answer.Body.Close() }()
		return nil, errorOf(answer)
	}
	if err != nil {
		return nil, err
	}
	ws.SetReadLimit(wire.MaxForwardBytes)
	return &PortConn{ws}, nil
}

// Close breaks the connection.
func (p *PortConn) Close() { _ = p.ws.CloseNow() }

// Carry carries bytes both ways between the port and conn, until both directions have ended or ctx has. It closes both.
func (p *PortConn) Carry(ctx context.Context, conn net.Conn) error {
	ws := p.ws
	defer func() { _ = conn.Close() }()
	defer func() { _ = ws.CloseNow() }()
	ctx, done := context.WithCancel(ctx)
	defer done()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	var sending sync.WaitGroup
	defer sending.Wait()
	sending.Go(func() {
		if send(ctx, ws, conn) != nil {
			done()
		}
	})
	err := receive(ctx, ws, conn)
	if err != nil {
		done()
		_ = conn.Close()
	}
	return err
}

// send sends what conn carries, and an empty message at its end.
func send(ctx context.Context, ws *websocket.Conn, conn net.Conn) error {
	buf := make([]byte, wire.MaxForwardBytes/2)
	for {
		n, err := conn.Read(buf)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if n > 0 || err != nil {
			if failed := ws.Write(ctx, websocket.MessageBinary, buf[:n]); failed != nil || err != nil {
				return failed
			}
		}
	}
}

// receive writes messages to conn until the farm closes the connection in order.
func receive(ctx context.Context, ws *websocket.Conn, conn net.Conn) error {
	for {
		_, data, err := ws.Read(ctx)
		if websocket.CloseStatus(err) == websocket.StatusNormalClosure {
			return nil
		}
		if err != nil {
			return err
		}
		if len(data) > 0 {
			_, err = conn.Write(data)
		} else if half, ok := conn.(interface{ CloseWrite() error }); ok {
			err = half.CloseWrite()
		}
		if err != nil {
			return err
		}
	}
}

package blob

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"
)

// dialTimeout bounds making one connection: an object store is near.
const dialTimeout = 5 * time.Second

// newTransport makes an HTTP transport that gives up when nothing moves, and never because a transfer is long.
func newTransport(stall time.Duration) *http.Transport {
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return newStallConn(conn, stall), nil
		},
		MaxIdleConns:          256,
		MaxIdleConnsPerHost:   32,
		IdleConnTimeout:       stall,
		TLSHandshakeTimeout:   dialTimeout,
		ResponseHeaderTimeout: stall,
		// Objects are stored as they are: what was put in gzipped comes out gzipped.
		DisableCompression: true,
		WriteBufferSize:    64 << 10,
		ReadBufferSize:     64 << 10,
	}
}

// stallConn ends a read or a write once no byte has moved in either direction for a while. Both directions count, since
// the reader of an HTTP connection waits for the answer while a long upload is still being written.
type stallConn struct {
	net.Conn
	stall time.Duration
	moved atomic.Int64 // when a byte moved last, in Unix nanoseconds
}

func newStallConn(conn net.Conn, stall time.Duration) *stallConn {
	c := &stallConn{Conn: conn, stall: stall}
	c.moved.Store(time.Now().UnixNano())
	return c
}

// Read reads, and waits on while the other direction moves.
func (c *stallConn) Read(p []byte) (int, error) {
	deadline := time.Now().Add(c.stall)
	for {
		if err := c.SetReadDeadline(deadline); err != nil {
			return 0, err
		}
		n, err := c.Conn.Read(p)
		if n > 0 {
			c.moved.Store(time.Now().UnixNano())
			return n, err
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		if deadline = c.lastMoved().Add(c.stall); !time.Now().Before(deadline) {
			return 0, err
		}
	}
}

// Write writes all of p, and gives up when the other side takes no byte of it for the stall time.
func (c *stallConn) Write(p []byte) (int, error) {
	var done int
	for {
		if err := c.SetWriteDeadline(time.Now().Add(c.stall)); err != nil {
			return done, err
		}
		n, err := c.Conn.Write(p[done:])
		done += n
		if n > 0 {
			c.moved.Store(time.Now().UnixNano())
		}
		if err == nil || n == 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return done, err
		}
	}
}

func (c *stallConn) lastMoved() time.Time { return time.Unix(0, c.moved.Load()) }

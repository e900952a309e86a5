package blob

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/httpserver"
)

// dialTimeout bounds making one connection: an object store is on the same network.
const dialTimeout = 5 * time.Second

// newTransport makes an HTTP transport that times out when no byte moves, never because a transfer takes long.
func newTransport(stall time.Duration) *http.Transport {
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			if tcp, ok := conn.(*net.TCPConn); ok {
				httpserver.BoundBuffer(tcp)
			}
			return newStallConn(conn, stall), nil
		},
		MaxIdleConns:        256,
		MaxIdleConnsPerHost: 32,
		IdleConnTimeout:     stall,
		TLSHandshakeTimeout: dialTimeout,
		// Objects are stored as they are: gzipped content is returned gzipped.
		DisableCompression: true,
		WriteBufferSize:    64 << 10,
		ReadBufferSize:     64 << 10,
	}
}

// stallChecks is how often a waiting connection is checked within the stall timeout.
const stallChecks = 4

// stallConn ends a read or a write if no byte moves in either direction for the stall timeout. Both directions count, since the
// reader of an HTTP connection waits for the response while a long upload is being sent. Bytes in the kernel's buffer count as
// well: on a slow line they take minutes to send.
type stallConn struct {
	net.Conn
	stall  time.Duration
	moved  atomic.Int64 // when the last byte moved, in Unix nanoseconds
	queued atomic.Int64 // bytes in the kernel's buffer at the last check
}

func newStallConn(conn net.Conn, stall time.Duration) *stallConn {
	c := &stallConn{Conn: conn, stall: stall}
	c.touch()
	return c
}

// Read reads, and keeps waiting while bytes move.
func (c *stallConn) Read(p []byte) (int, error) {
	began := time.Now()
	for {
		if err := c.SetReadDeadline(c.nextCheck()); err != nil {
			return 0, err
		}
		n, err := c.Conn.Read(p)
		if n > 0 {
			c.touch()
			return n, err
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) || c.stalled(began) {
			return n, err
		}
	}
}

// Write writes all of p, and keeps waiting while bytes move.
func (c *stallConn) Write(p []byte) (int, error) {
	began := time.Now()
	var done int
	for {
		if err := c.SetWriteDeadline(c.nextCheck()); err != nil {
			return done, err
		}
		n, err := c.Conn.Write(p[done:])
		done += n
		if n > 0 {
			c.touch()
		}
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) || c.stalled(began) {
			return done, err
		}
	}
}

func (c *stallConn) touch() { c.moved.Store(time.Now().UnixNano()) }

func (c *stallConn) nextCheck() time.Time { return time.Now().Add(c.stall / stallChecks) }

// stalled reports whether nothing moved for the stall timeout while a call waited all that time.
func (c *stallConn) stalled(began time.Time) bool {
	if queued := c.unsent(); c.queued.Swap(queued) != queued {
		c.touch()
	}
	return time.Since(began) >= c.stall && time.Since(time.Unix(0, c.moved.Load())) >= c.stall
}

// unsent returns how many bytes the peer has not acknowledged; 0 if the kernel does not say.
func (c *stallConn) unsent() int64 {
	sc, ok := c.Conn.(syscall.Conn)
	if !ok {
		return 0
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return 0
	}
	var queued int
	err = raw.Control(func(fd uintptr) { queued, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
	if err != nil {
		return 0
	}
	return int64(queued)
}

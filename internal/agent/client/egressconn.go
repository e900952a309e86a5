package client

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/sandfarm/sandfarm/internal/httpserver"
)

// egressConn is a stream that the agent opened. It is read into a bounded buffer, even when Read is not called. Of a request to the index,
// data over the bound ends the session: yamux would buffer whole windows. Of a connection through a proxy, the rest waits in the stream, and
// then in the sandbox.
type egressConn struct {
	*yamux.Stream
	session *yamux.Session
	proxy   bool
	header  httpserver.Header

	mu       sync.Mutex
	wake     *sync.Cond // for all: data, room for more, the end, a deadline
	buf      []byte
	err      error // why the stream ended
	closed   bool
	late     bool // the read deadline has passed
	deadline *time.Timer
	round    int // tells the current read deadline from earlier ones

	over   chan struct{} // closed by Close
	ending sync.Once
	sendBy atomic.Int64 // write deadline in Unix nanoseconds; 0: none
}

var _ net.Conn = (*egressConn)(nil)

// pump reads until the agent ends the stream. Data after Close is discarded. Of a request to the index it counts; of a connection through a
// proxy, yamux resets the stream if the agent continues for minutes.
func (c *egressConn) pump() {
	part := make([]byte, 4<<10)
	if c.proxy {
		part = make([]byte, 16<<10)
	}
	unread := 0
	for {
		if c.proxy {
			c.waitForRoom(maxEgressUnread - len(part))
		}
		n, err := c.Stream.Read(part)
		c.mu.Lock()
		if c.closed {
			c.buf = nil
			unread += n
			c.Shrink() // the agent may keep its direction open
		} else {
			c.buf = append(c.buf, part[:n]...)
			unread = len(c.buf)
		}
		if err != nil {
			c.err = err
		}
		c.wake.Broadcast()
		c.mu.Unlock()
		if unread > maxEgressUnread && !c.proxy {
			_ = c.session.Close()
			return
		}
		if err != nil {
			return
		}
	}
}

// waitForRoom waits until at most this many bytes are unread, or the stream is closed.
func (c *egressConn) waitForRoom(unread int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.buf) > unread && !c.closed {
		c.wake.Wait()
	}
}

// Read returns received data.
func (c *egressConn) Read(p []byte) (int, error) { return c.header.Read(p, c.read) }

func (c *egressConn) read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		switch {
		case c.closed:
			return 0, net.ErrClosed
		case len(c.buf) > 0:
			n := copy(p, c.buf)
			if c.buf = c.buf[n:]; len(c.buf) == 0 {
				c.buf = nil
			}
			c.wake.Broadcast()
			return n, nil
		case c.err != nil:
			return 0, io.EOF
		case c.late:
			return 0, os.ErrDeadlineExceeded
		}
		c.wake.Wait()
	}
}

// Write sends in pieces, so that other streams do not wait long. If the agent reads nothing for egressIdle, Write fails.
func (c *egressConn) Write(p []byte) (int, error) {
	sent := 0
	for {
		until := time.Now().Add(egressIdle)
		if by := c.sendBy.Load(); by != 0 && by < until.UnixNano() {
			until = time.Unix(0, by)
		}
		if err := c.Stream.SetWriteDeadline(until); err != nil {
			return sent, err
		}
		n, err := c.Stream.Write(p[sent:min(sent+egressPiece, len(p))])
		if sent += n; err != nil || sent == len(p) {
			return sent, err
		}
	}
}

// Close ends this direction; the agent must end its own.
func (c *egressConn) Close() error {
	c.mu.Lock()
	c.closed = true
	c.round++
	c.wake.Broadcast()
	c.mu.Unlock()
	c.ending.Do(func() { close(c.over) })
	return c.Stream.Close()
}

// CloseWrite ends this direction, and data of the agent can still be read. Close must follow.
func (c *egressConn) CloseWrite() error { return c.Stream.Close() }

// SetWriteDeadline bounds later writes.
func (c *egressConn) SetWriteDeadline(at time.Time) error {
	by := int64(0)
	if !at.IsZero() {
		by = at.UnixNano()
	}
	c.sendBy.Store(by)
	return nil
}

// SetReadDeadline bounds Read.
func (c *egressConn) SetReadDeadline(at time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.deadline != nil {
		c.deadline.Stop()
	}
	c.round++
	round := c.round
	c.late = !at.IsZero() && !at.After(time.Now())
	if !at.IsZero() && !c.late {
		c.deadline = time.AfterFunc(time.Until(at), func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.round == round {
				c.late = true
				c.wake.Broadcast()
			}
		})
	}
	c.wake.Broadcast()
	return nil
}

// SetDeadline bounds both.
func (c *egressConn) SetDeadline(at time.Time) error {
	return errors.Join(c.SetReadDeadline(at), c.SetWriteDeadline(at))
}

// RemoteAddr is the remote address that handlers see.
func (c *egressConn) RemoteAddr() net.Addr { return sandboxAddr{} }

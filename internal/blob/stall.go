package blob

import (
	"errors"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// stallChecks is how often within the stall time a waiting connection is looked at.
const stallChecks = 4

// stallConn ends a read or a write once no byte has moved in either direction for a while. Both directions count, since
// the reader of an HTTP connection waits for the answer while a long upload is still being sent; and what the kernel
// still holds counts too, which on a slow line is minutes of sending.
type stallConn struct {
	net.Conn
	stall  time.Duration
	moved  atomic.Int64 // when a byte moved last, in Unix nanoseconds
	queued atomic.Int64 // bytes that the kernel held when it was asked last
}

func newStallConn(conn net.Conn, stall time.Duration) *stallConn {
	c := &stallConn{Conn: conn, stall: stall}
	c.touch()
	return c
}

// Read reads, and waits on while anything moves.
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

// Write writes all of p, and waits on while anything moves.
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

// stalled tells that nothing has moved for the stall time, of which a call has waited through all.
func (c *stallConn) stalled(began time.Time) bool {
	if queued := c.unsent(); c.queued.Swap(queued) != queued {
		c.touch()
	}
	return time.Since(began) >= c.stall && time.Since(time.Unix(0, c.moved.Load())) >= c.stall
}

// unsent gives how many bytes the other side has not acknowledged yet; 0 where the kernel does not tell.
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

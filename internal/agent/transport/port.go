package transport

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// dialTimeout bounds a connection to a loopback, where a server may have a full backlog.
	dialTimeout = 5 * time.Second
	// copyBytes is the buffer of one direction.
	copyBytes = 32 << 10
	// portBytes is the buffer of the kernel for each direction of a connection to a port; it takes twice as much memory.
	portBytes = 96 << 10
)

// Bound bounds what the kernel keeps of a connection that is part of one to a port: it lets a connection that was read fast have six MiB and more, and
// keeps these when its reader is slow then.
func Bound(conn *net.TCPConn) error {
	return errors.Join(conn.SetReadBuffer(portBytes), conn.SetWriteBuffer(portBytes))
}

// PortServer is a connection to a server on a port.
type PortServer interface {
	io.ReadWriteCloser
	// CloseWrite ends the direction to the server.
	CloseWrite() error
	// Abort closes the connection so that the server sees that it was broken off.
	Abort()
}

// DialPort connects to a port of a loopback: that of IPv4, or that of IPv6 if nothing listens there. dial connects to an address. Not found: nothing
// listens on either.
func DialPort(ctx context.Context, port uint16, dial func(ctx context.Context, address string) (*net.TCPConn, error)) (PortServer, error) {
	ctx, done := context.WithTimeout(ctx, dialTimeout)
	defer done()
	text := strconv.Itoa(int(port))
	var first error
	for _, host := range []string{"127.0.0.1", "::1"} {
		conn, err := dial(ctx, net.JoinHostPort(host, text))
		if err == nil {
			_ = Bound(conn)
			return server{conn}, nil
		}
		if first == nil {
			first = err
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			break
		}
	}
	if errors.Is(first, syscall.ECONNREFUSED) {
		return nil, farm.Wrap(first, farm.CodeNotFound, "Nothing listens on port %s of the sandbox. Start a server there, on 127.0.0.1 or on all addresses, and try again.", text)
	}
	return nil, farm.Wrap(first, farm.CodeUnavailable, "The server on port %s of the sandbox accepts no connection.", text)
}

// server is a TCP connection to a server.
type server struct{ *net.TCPConn }

// Abort implements PortServer.
func (s server) Abort() {
	_ = s.SetLinger(0)
	_ = s.Close()
}

// PortCaller is the connection of who uses a port.
type PortCaller interface {
	io.ReadWriter
	// CloseWrite ends the direction to the caller.
	CloseWrite() error
	// Reset breaks the connection off: what the caller has read is not complete.
	Reset()
	// Gone waits until the caller's end is closed. Nothing is read any more.
	Gone()
}

// JoinPort carries bytes between a server and a caller, each direction until it ends. It returns when both have ended and the caller is gone; the
// connection to the server is closed then.
func JoinPort(s PortServer, c PortCaller) {
	var in sync.WaitGroup
	in.Go(func() {
		from, err := carry(s, c)
		switch {
		case from && errors.Is(err, io.EOF):
			_ = s.CloseWrite()
		case from: // the caller broke off
			s.Abort()
		}
		c.Gone() // what the server has closed is dropped until then
		_ = s.Close()
	})
	if from, err := carry(c, s); from && errors.Is(err, io.EOF) {
		_ = c.CloseWrite()
	} else {
		c.Reset()
	}
	in.Wait()
}

var buffers = sync.Pool{New: func() any { return new([copyBytes]byte) }}

// carry copies until one side ends. from says that it was the side that is read.
func carry(to io.Writer, source io.Reader) (from bool, err error) {
	buf := buffers.Get().(*[copyBytes]byte) //nolint:errcheck // the pool holds nothing else
	defer buffers.Put(buf)
	for {
		n, err := source.Read(buf[:])
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return false, err
			}
		}
		if err != nil {
			return true, err
		}
	}
}

package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/transport"
)

const (
	// zmtpGreeting is the length of the greeting that both sides of a ZeroMQ connection send first.
	zmtpGreeting = 64
	// zmtpFrame is what each frame counts in addition to its bytes, so that the number of frames is bounded too.
	zmtpFrame = 64
	// maxChannelBytes bounds a message of a kernel.
	maxChannelBytes = 64 << 20
)

// The flags of a ZMTP frame.
const (
	zmtpMore = 1 << iota
	zmtpLong
)

// errChannelBytes means that a kernel sent a message that is too large.
var errChannelBytes = errors.New("read from kernel: the message is too large")

// boundedTransport is a ZeroMQ transport that closes a connection when a message on it is too large. The library allocates as much
// memory as the header of a frame asks for, up to 2^63 bytes, and user code can write to the sockets of a kernel.
type boundedTransport struct{ transport.Transport }

// Dial connects.
func (t boundedTransport) Dial(ctx context.Context, dialer transport.Dialer, addr string) (net.Conn, error) {
	conn, err := t.Transport.Dial(ctx, dialer, addr)
	if err != nil {
		return nil, err
	}
	return &boundedConn{Conn: conn, skip: zmtpGreeting}, nil
}

// boundedScheme is the scheme of bounded connections over a network.
func boundedScheme(network string) string { return "bounded-" + network }

// registerBounded registers the bounded transports with the library, whose registry is global.
func registerBounded() error {
	for _, network := range []string{"unix", "tcp"} {
		err := zmq4.RegisterTransport(boundedScheme(network), boundedTransport{transport.New(network)})
		if err != nil && !isRegistered(network) {
			return fmt.Errorf("register transport: %w", err)
		}
	}
	return nil
}

func isRegistered(network string) bool {
	for _, name := range zmq4.Transports() {
		if name == boundedScheme(network) {
			return true
		}
	}
	return false
}

// boundedConn parses the headers of incoming frames, and fails before the library sees one that is too large.
type boundedConn struct {
	net.Conn
	skip  uint64 // bytes of the greeting or of a frame not yet received
	head  []byte // of the current frame
	total uint64 // of the message so far
	err   error
}

// Read fails if the message is too large.
func (c *boundedConn) Read(p []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	n, err := c.Conn.Read(p)
	if c.err = c.follow(p[:n]); c.err != nil {
		return 0, c.err
	}
	return n, err
}

func (c *boundedConn) follow(p []byte) error {
	for len(p) > 0 {
		if c.skip > 0 {
			n := min(c.skip, uint64(len(p)))
			c.skip -= n
			p = p[n:]
			continue
		}
		c.head = append(c.head, p[0])
		p = p[1:]
		need := 2
		if c.head[0]&zmtpLong != 0 {
			need = 9
		}
		if len(c.head) < need {
			continue
		}
		size := uint64(c.head[1])
		if need == 9 {
			size = binary.BigEndian.Uint64(c.head[1:])
		}
		c.total += zmtpFrame + min(size, maxChannelBytes)
		if size > maxChannelBytes || c.total > maxChannelBytes {
			return errChannelBytes
		}
		if c.head[0]&zmtpMore == 0 {
			c.total = 0
		}
		c.skip, c.head = size, c.head[:0]
	}
	return nil
}

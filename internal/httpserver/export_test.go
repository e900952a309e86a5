package httpserver

import (
	"net"
	"time"
)

// DefaultConnections is for tests.
var DefaultConnections = defaultConnections

// Crowded reports whether a new connection replaces one at once where so many of all connections have just come, or wait for callers that are not known.
func Crowded(most, fresh, unknown int) bool {
	l := newLimited(nil, most, time.Minute)
	for range fresh {
		l.wait(&counted{}, &l.fresh, false, 0)
	}
	for range unknown {
		l.wait(&counted{}, &l.unknown, false, 0)
	}
	conn, _ := l.victim()
	return conn != nil
}

// LargeBuffers is for tests.
var LargeBuffers = largeBuffers

// The limits are for tests.
const (
	HeaderLines = headerLines
	MaxChain    = maxChain
	MaxKeyBits  = maxKeyBits

	MaxHandshakeBytes = maxHandshakeBytes
)

// Handshaking is a connection before it is secure.
func Handshaking(c net.Conn) net.Conn { return &handshakeConn{Conn: c} }

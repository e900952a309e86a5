package httpserver

import "net"

// DefaultConnections is for tests.
var DefaultConnections = defaultConnections

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

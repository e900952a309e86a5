package httpserver

import (
	"net"
	"time"
)

// DefaultConnections is for tests.
var DefaultConnections = defaultConnections

// Crowded says which connection a new one replaces at once where so many of all connections are idle, have sent no request for some time, or wait for callers that
// are not known: "idle", "fresh", "unknown", or "" for none.
func Crowded(most, idle, fresh, unknown int, since, waits time.Duration) string {
	l, names := newLimited(nil, most, time.Minute, firstBytes), map[net.Conn]string{}
	for range idle {
		c := &counted{}
		names[c] = "idle"
		l.places[c] = l.idle.PushBack(c)
	}
	for range fresh {
		c := &counted{}
		names[c] = "fresh"
		l.wait(c, &l.fresh, false, since)
	}
	for range unknown {
		c := &counted{}
		names[c] = "unknown"
		l.wait(c, &l.unknown, false, waits)
	}
	conn, _ := l.victim()
	return names[conn]
}

// LargeBuffers and Take are for tests.
var (
	LargeBuffers = largeBuffers
	Take         = take
)

// The limits are for tests.
const (
	HeaderLines = headerLines
	MaxChain    = maxChain
	MaxKeyBits  = maxKeyBits

	MaxHandshakeBytes = maxHandshakeBytes
)

// Handshaking is a connection before it is secure.
func Handshaking(c net.Conn) net.Conn { return &handshakeConn{Conn: c} }

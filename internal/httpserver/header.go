package httpserver

import (
	"net"
	"net/http"
	"sync/atomic"
)

const (
	// headerBytes is how long a header is where the server does not say it.
	headerBytes = 32 << 10
	// headerLines is how many lines a request or an answer has before its body. Browsers and proxies send fewer than 60, and an upload of E2B's
	// SDKs has 64 more with its metadata.
	headerLines = 128
	// fill is the buffer that http.Server reads a header into. A read with a larger one is of a body.
	fill = 4 << 10
)

// Header bounds the lines of the headers that an http.Server reads from one connection; the server itself bounds their bytes only. The
// connection must pass on its reads and its states. The zero value bounds nothing until it is told the first state.
type Header struct {
	reading atomic.Bool // a header
	serving atomic.Bool // HTTP
	lines   Lines
}

// Note is told each state of the connection, by the server's ConnState: between requests, and until the first one, the server reads a header.
func (h *Header) Note(state http.ConnState) {
	h.lines.Reset()
	h.reading.Store(state == http.StateNew || state == http.StateIdle)
	h.serving.Store(state != http.StateHijacked)
}

// Read reads with from. It fails if the header is not complete after 128 lines, and as many as one more read brings.
func (h *Header) Read(b []byte, from func([]byte) (int, error)) (int, error) {
	if !h.serving.Load() {
		return from(b)
	}
	if h.reading.Load() { // lines of a body that come with the end of its header go uncounted when the next state is noted
		return h.lines.Read(b, from, headerLines)
	}
	if len(b) <= fill { // what it has beyond the body is the next header, and is not counted
		b = b[:min(len(b), ahead)]
	}
	return from(b)
}

// BoundHeaders bounds the lines of the headers that a server reads from the connections of a listener, which it replaces. It sets the ConnState of
// the server.
func BoundHeaders(s *http.Server, l net.Listener) net.Listener {
	s.ConnState = func(c net.Conn, state http.ConnState) {
		if c, ok := c.(*headerConn); ok {
			c.header.Note(state)
		}
	}
	return accepting{l, func(c net.Conn) net.Conn { return &headerConn{Conn: c} }}
}

type headerConn struct {
	net.Conn
	header Header
}

// Read implements net.Conn.
func (c *headerConn) Read(b []byte) (int, error) { return c.header.Read(b, c.Conn.Read) }

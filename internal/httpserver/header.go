package httpserver

import (
	"bytes"
	"errors"
	"net"
	"net/http"
	"strings"
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
	// ahead bounds each read of a header, which may bring bytes of what follows it.
	ahead = 512
)

// ErrHeaderLines says that a header has too many lines.
var ErrHeaderLines = errors.New("the header has too many lines")

// Lines counts the lines of a header while it is read. Each takes some 100 bytes in memory, however short it is. The zero value has counted none.
type Lines struct{ n atomic.Int64 }

// Reset begins with the next header.
func (l *Lines) Reset() { l.n.Store(0) }

// Over reports whether there were more lines than a number of them.
func (l *Lines) Over(limit int) bool { return l.n.Load() > int64(limit) }

// Read reads with from, a little at a time. It fails if the header is not complete after so many lines, and as many as one more read brings.
func (l *Lines) Read(b []byte, from func([]byte) (int, error), limit int) (int, error) {
	if l.Over(limit) {
		return 0, ErrHeaderLines
	}
	n, err := from(b[:min(len(b), ahead)])
	l.n.Add(int64(bytes.Count(b[:n], []byte{'\n'})))
	return n, err
}

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

// Serving reports whether the connection serves HTTP: not before the first state, and not when it was hijacked.
func (h *Header) Serving() bool { return h.serving.Load() }

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

// OneRange removes a request for several ranges, each of which is a read of its own: the answer is the whole, as RFC 9110 (14.2) allows. Whoever
// serves content by http.ServeContent calls it before.
func OneRange(r *http.Request) {
	if strings.Contains(strings.Join(r.Header.Values("Range"), ","), ",") {
		r.Header.Del("Range")
	}
}

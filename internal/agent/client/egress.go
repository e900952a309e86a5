package client

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/httpserver"
)

const (
	// egressTimeout is how long a further stream may wait for another to end: a stream may end here later than at the agent.
	egressTimeout = time.Second
	// acceptBacklog bounds the streams that wait to be accepted, on either side.
	acceptBacklog = 64
	// maxEgressUnread bounds what is kept of one stream before it is read. A request to the index is far smaller: what is more ends the session.
	// With a proxy, no more is taken from the stream until it is read.
	maxEgressUnread = 64 << 10
	// maxEgressHeader bounds the header of a request to the index, and maxProxyHeader that of one to a proxy, with its cookies.
	maxEgressHeader = 16 << 10
	maxProxyHeader  = 32 << 10
	// egressIdle is how long the agent may read nothing of an answer.
	egressIdle = 5 * time.Minute
	// egressPiece bounds one write to a stream.
	egressPiece = 64 << 10
	// egressHeaderTimeout bounds reading the header of a request.
	egressHeaderTimeout = 30 * time.Second
)

// serveEgress serves the streams that the agent opens until the session ends. Without a handler the first one ends it: its data
// would stay in memory unread.
func serveEgress(session *yamux.Session, o Options) {
	if o.Egress == nil {
		if stream, err := session.AcceptStream(); err == nil {
			_ = stream.Close()
			_ = session.Close()
		}
		return
	}
	streams, header := agent.MaxIndexStreams, maxEgressHeader
	if o.Proxy {
		streams, header = agent.MaxProxyStreams, maxProxyHeader
	}
	l := &egressListener{session: session, slots: make(chan struct{}, streams), proxy: o.Proxy, admit: o.Admit}
	if l.admit == nil {
		l.admit = func() (func(), bool) { return func() {}, true }
	}
	srv := &http.Server{
		Handler: bodyless(o.Egress, o.Proxy), ReadHeaderTimeout: egressHeaderTimeout, MaxHeaderBytes: header - headerSlack,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		ConnState: func(conn net.Conn, state http.ConnState) {
			if c, ok := conn.(*egressConn); ok {
				c.header.Note(state)
			}
		},
	}
	srv.SetKeepAlivesEnabled(false) // a new stream costs little, and an idle one would occupy a slot
	_ = srv.Serve(l)
	_ = srv.Close()
	_ = session.Close()
}

// headerSlack is what net/http accepts beyond MaxHeaderBytes.
const headerSlack = 4 << 10

// bodyless refuses requests to the index with a body: an index needs none.
func bodyless(next http.Handler, proxy bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		toIndex := !proxy || r.Method != http.MethodConnect && !r.URL.IsAbs()
		if toIndex && (r.ContentLength != 0 || len(r.TransferEncoding) > 0) {
			http.Error(w, "The package index does not accept requests with a body.", http.StatusRequestEntityTooLarge)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// egressListener accepts the streams that the agent opens.
type egressListener struct {
	session *yamux.Session
	slots   chan struct{}
	proxy   bool
	admit   func() (release func(), ok bool)
}

// unadmitted is the answer to a stream that is not admitted.
const unadmitted = "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n" +
	"This farm's worker has no memory for more connections. Try again later.\n"

// Accept returns the next stream that is admitted. Too many open streams end the session.
func (l *egressListener) Accept() (net.Conn, error) {
	for {
		c, err := l.accept()
		if err != nil || c != nil {
			return c, err
		}
	}
}

// accept returns the next stream; nil: it is not admitted.
func (l *egressListener) accept() (net.Conn, error) {
	stream, err := l.session.AcceptStream()
	if err != nil {
		return nil, err
	}
	timer := time.NewTimer(egressTimeout)
	defer timer.Stop()
	select {
	case l.slots <- struct{}{}:
	case <-timer.C:
		_ = l.session.Close()
		return nil, errors.New("serve index: the agent opens too many streams")
	}
	c := &egressConn{Stream: stream, session: l.session, proxy: l.proxy, over: make(chan struct{})}
	c.wake = sync.NewCond(&c.mu)
	release, admitted := l.admit()
	if !admitted {
		release = func() {}
		go func() {
			_, _ = io.WriteString(c, unadmitted)
			_ = c.Close()
		}()
	}
	go func() {
		defer func() { release(); <-l.slots }()
		c.pump()
		select { // the answer may still be in flight although the agent has ended its direction
		case <-c.over:
		case <-l.session.CloseChan():
		}
	}()
	if !admitted {
		return nil, nil
	}
	return c, nil
}

// Close does nothing: the streams end with the session.
func (l *egressListener) Close() error { return nil }

// Addr implements net.Listener.
func (l *egressListener) Addr() net.Addr { return sandboxAddr{} }

// sandboxAddr is the remote address of requests from a sandbox.
type sandboxAddr struct{}

// Network implements net.Addr.
func (sandboxAddr) Network() string { return "sandbox" }

// String implements net.Addr.
func (sandboxAddr) String() string { return "sandbox" }

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

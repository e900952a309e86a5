package client

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/hashicorp/yamux"
)

const (
	// maxIndexStreams is how many connections the agent may have open to the index at once, which is its own limit. More end the
	// session.
	maxIndexStreams = 32
	// indexPatience is how long a further stream may wait for another to end: a stream may end here later than at the agent.
	indexPatience = time.Second
	// acceptBacklog bounds the streams that wait to be accepted, on either side.
	acceptBacklog = 64
	// maxIndexUnread bounds what the agent sends ahead on one stream. A request is far smaller.
	maxIndexUnread = 64 << 10
	// maxIndexHeader bounds the header of a request.
	maxIndexHeader = 16 << 10
	// indexIdle is how long the agent may read nothing of an answer.
	indexIdle = 5 * time.Minute
	// indexPiece bounds one write to a stream.
	indexPiece = 64 << 10
	// indexHeaderTimeout bounds reading the header of a request.
	indexHeaderTimeout = 30 * time.Second
)

// serveIndex serves the streams that the agent opens until the session ends. Without a handler the first one ends it: its data
// would stay in memory unread.
func serveIndex(session *yamux.Session, handler http.Handler) {
	if handler == nil {
		if stream, err := session.AcceptStream(); err == nil {
			_ = stream.Close()
			_ = session.Close()
		}
		return
	}
	l := &indexListener{session: session, slots: make(chan struct{}, maxIndexStreams)}
	srv := &http.Server{
		Handler: bodyless(handler), ReadHeaderTimeout: indexHeaderTimeout, MaxHeaderBytes: maxIndexHeader - headerSlack,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
	srv.SetKeepAlivesEnabled(false) // a new stream costs little, and an idle one would occupy a slot
	_ = srv.Serve(l)
	_ = srv.Close()
	_ = session.Close()
}

// headerSlack is what net/http accepts beyond MaxHeaderBytes.
const headerSlack = 4 << 10

// bodyless refuses requests with a body: an index needs none.
func bodyless(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 || len(r.TransferEncoding) > 0 {
			http.Error(w, "The package index does not accept requests with a body.", http.StatusRequestEntityTooLarge)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// indexListener accepts the streams that the agent opens.
type indexListener struct {
	session *yamux.Session
	slots   chan struct{}
}

// Accept returns the next stream. Too many open streams end the session.
func (l *indexListener) Accept() (net.Conn, error) {
	stream, err := l.session.AcceptStream()
	if err != nil {
		return nil, err
	}
	timer := time.NewTimer(indexPatience)
	defer timer.Stop()
	select {
	case l.slots <- struct{}{}:
	case <-timer.C:
		_ = l.session.Close()
		return nil, errors.New("serve index: the agent opens too many streams")
	}
	c := &indexConn{Stream: stream, session: l.session, over: make(chan struct{})}
	c.wake = sync.NewCond(&c.mu)
	go func() {
		defer func() { <-l.slots }()
		c.pump()
		select { // the answer may still be in flight although the agent has ended its direction
		case <-c.over:
		case <-l.session.CloseChan():
		}
	}()
	return c, nil
}

// Close does nothing: the streams end with the session.
func (l *indexListener) Close() error { return nil }

// Addr implements net.Listener.
func (l *indexListener) Addr() net.Addr { return sandboxAddr{} }

// sandboxAddr is the remote address of requests from a sandbox.
type sandboxAddr struct{}

// Network implements net.Addr.
func (sandboxAddr) Network() string { return "sandbox" }

// String implements net.Addr.
func (sandboxAddr) String() string { return "sandbox" }

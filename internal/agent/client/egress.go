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
	// maxEgressStreams is how many connections the agent may have open to the index at once, which is its own limit. More end the
	// session.
	maxEgressStreams = 32
	// egressPatience is how long a further stream may wait for another to end: a stream may end here later than at the agent.
	egressPatience = time.Second
	// acceptBacklog bounds the streams that wait to be accepted, on either side.
	acceptBacklog = 64
	// maxEgressUnread bounds what the agent sends ahead on one stream. A request is far smaller.
	maxEgressUnread = 64 << 10
	// maxEgressHeader bounds the header of a request.
	maxEgressHeader = 16 << 10
	// egressIdle is how long the agent may read nothing of an answer.
	egressIdle = 5 * time.Minute
	// egressPiece bounds one write to a stream.
	egressPiece = 64 << 10
	// egressHeaderTimeout bounds reading the header of a request.
	egressHeaderTimeout = 30 * time.Second
)

// serveEgress serves the streams that the agent opens until the session ends. Without a handler the first one ends it: its data
// would stay in memory unread.
func serveEgress(session *yamux.Session, handler http.Handler) {
	if handler == nil {
		if stream, err := session.AcceptStream(); err == nil {
			_ = stream.Close()
			_ = session.Close()
		}
		return
	}
	l := &egressListener{session: session, slots: make(chan struct{}, maxEgressStreams)}
	srv := &http.Server{
		Handler: bodyless(handler), ReadHeaderTimeout: egressHeaderTimeout, MaxHeaderBytes: maxEgressHeader - headerSlack,
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

// egressListener accepts the streams that the agent opens.
type egressListener struct {
	session *yamux.Session
	slots   chan struct{}
}

// Accept returns the next stream. Too many open streams end the session.
func (l *egressListener) Accept() (net.Conn, error) {
	stream, err := l.session.AcceptStream()
	if err != nil {
		return nil, err
	}
	timer := time.NewTimer(egressPatience)
	defer timer.Stop()
	select {
	case l.slots <- struct{}{}:
	case <-timer.C:
		_ = l.session.Close()
		return nil, errors.New("serve index: the agent opens too many streams")
	}
	c := &egressConn{Stream: stream, session: l.session, over: make(chan struct{})}
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
func (l *egressListener) Close() error { return nil }

// Addr implements net.Listener.
func (l *egressListener) Addr() net.Addr { return sandboxAddr{} }

// sandboxAddr is the remote address of requests from a sandbox.
type sandboxAddr struct{}

// Network implements net.Addr.
func (sandboxAddr) Network() string { return "sandbox" }

// String implements net.Addr.
func (sandboxAddr) String() string { return "sandbox" }

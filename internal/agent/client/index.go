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
	// maxIndexStreams is how many connections the agent may have open to the index at once, as many as it makes. More end the
	// session.
	maxIndexStreams = 32
	// indexPatience is how long one more may wait for another to end: what the agent sees as ended may not be so here yet.
	indexPatience = time.Second
	// acceptBacklog bounds the streams that wait to be accepted, by the agent's side or by ours.
	acceptBacklog = 64
	// maxIndexUnread bounds what the agent sends ahead on one stream. A request is far smaller.
	maxIndexUnread = 64 << 10
	// maxIndexHeader bounds the head of a request.
	maxIndexHeader = 16 << 10
	// indexIdle is how long the agent may take nothing of an answer.
	indexIdle = 5 * time.Minute
	// indexPiece is what one stream sends at once.
	indexPiece = 64 << 10
	// indexHeaderTimeout is how long the head of a request may take.
	indexHeaderTimeout = 30 * time.Second
)

// serveIndex serves the streams that the agent opens until the session ends. Without a handler the first one ends it: what came
// on it would lie in memory unread.
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
	srv.SetKeepAlivesEnabled(false) // a stream costs little, and one that idles would hold a place
	_ = srv.Serve(l)
	_ = srv.Close()
	_ = session.Close()
}

// headerSlack is what net/http takes beyond MaxHeaderBytes.
const headerSlack = 4 << 10

// bodyless refuses requests with a body: an index takes none.
func bodyless(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 || len(r.TransferEncoding) > 0 {
			http.Error(w, "The package index takes no request with a body.", http.StatusRequestEntityTooLarge)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// indexListener gives the streams that the agent opens.
type indexListener struct {
	session *yamux.Session
	slots   chan struct{}
}

// Accept gives the next stream, as long as there are not too many.
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
		select { // the answer may be on its way still, although the agent has ended its direction
		case <-c.over:
		case <-l.session.CloseChan():
		}
	}()
	return c, nil
}

// Close does nothing: the streams end with the session.
func (l *indexListener) Close() error { return nil }

// Addr gives a name.
func (l *indexListener) Addr() net.Addr { return sandboxAddr{} }

// sandboxAddr is the address of whoever speaks from within a sandbox.
type sandboxAddr struct{}

// Network gives a name.
func (sandboxAddr) Network() string { return "sandbox" }

// String gives a name.
func (sandboxAddr) String() string { return "sandbox" }

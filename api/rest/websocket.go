package rest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/time/rate"
)

const (
	// CloseTimeout bounds the end of a WebSocket, in which the client may still be sending a message.
	CloseTimeout = 5 * time.Second
	// closeBytes is how much of that is read: the library reads what comes before the client's close message as fast as it comes.
	closeBytes = 512 << 10
	// controlRate and controlBurst bound the pings and pongs of a client. The library answers pings while it reads.
	controlRate, controlBurst = 10, 100
)

// WebSocket is a WebSocket whose client cannot keep the server busy beside its messages.
type WebSocket struct {
	*websocket.Conn
	under *below
}

// AcceptWebSocket answers a request with a WebSocket. An error has been answered. options may be nil.
func AcceptWebSocket(w http.ResponseWriter, r *http.Request, options *websocket.AcceptOptions) (*WebSocket, error) {
	o := websocket.AcceptOptions{}
	if options != nil {
		o = *options
	}
	control := rate.NewLimiter(controlRate, controlBurst)
	o.OnPingReceived = func(ctx context.Context, _ []byte) bool { return control.Wait(ctx) == nil }
	o.OnPongReceived = func(ctx context.Context, _ []byte) { _ = control.Wait(ctx) }
	under := &upgrade{ResponseWriter: w}
	conn, err := websocket.Accept(under, r, &o)
	if err != nil {
		return nil, fmt.Errorf("accept a WebSocket: %w", err)
	}
	return &WebSocket{conn, under.conn}, nil
}

// Read reads the next message, which must come as a body that is held does (see HeldBody) once it has begun: the library reads empty fragments for ever.
// Beyond limit bytes it ends.
func (s *WebSocket) Read(ctx context.Context, limit int64, stall time.Duration) (websocket.MessageType, []byte, error) {
	kind, from, err := s.Reader(ctx)
	if err != nil {
		return 0, nil, err
	}
	data, err := io.ReadAll(io.LimitReader(Paced(from, stall, func() { _ = s.CloseNow() }), limit))
	return kind, data, err
}

// Close sends a close message, and waits for the client's for CloseTimeout, and closeBytes that come before it.
func (s *WebSocket) Close(code websocket.StatusCode, reason string) error {
	_ = s.under.SetDeadline(time.Now().Add(CloseTimeout))
	s.under.left.Store(closeBytes)
	s.under.ends.Store(true)
	return s.Conn.Close(code, reason)
}

// upgrade keeps the connection that is taken over.
type upgrade struct {
	http.ResponseWriter
	conn *below
}

// Hijack implements http.Hijacker.
func (u *upgrade) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(u.ResponseWriter).Hijack()
	u.conn = &below{Conn: conn}
	return u.conn, rw, err
}

// WriteHeaderNow sends the header where a router would send it with the first bytes of a body.
func (u *upgrade) WriteHeaderNow() {
	if router, ok := u.ResponseWriter.(interface{ WriteHeaderNow() }); ok {
		router.WriteHeaderNow()
	}
}

// below is the connection below a WebSocket.
type below struct {
	net.Conn
	ends atomic.Bool
	left atomic.Int64 // bytes that may come, once it ends
}

// Read implements net.Conn.
func (b *below) Read(p []byte) (int, error) {
	if !b.ends.Load() {
		return b.Conn.Read(p)
	}
	left := b.left.Load()
	if left <= 0 {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := b.Conn.Read(p[:min(int64(len(p)), left)])
	b.left.Add(-int64(n))
	return n, err
}

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

	"github.com/sandfarm/sandfarm/internal/httpserver"
)

const (
	// CloseTimeout bounds the end of a WebSocket, in which the client may still be sending a message.
	CloseTimeout = 5 * time.Second
	// closeBytes is how much of that is read.
	closeBytes = 512 << 10
	// controlRate and controlBurst bound the pings and pongs of a client. The library answers pings while it reads.
	controlRate, controlBurst = 10, 100
	// frameBytes is for how many bytes a frame of a client counts, beside its own: it may have none, and costs some ten microseconds on its way to a
	// sandbox.
	frameBytes = 8 << 10
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
	under := &upgrade{ResponseWriter: w, ctx: r.Context()}
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
	data, err := io.ReadAll(io.LimitReader(Paced(s.under.ctx, from, stall, func() { _ = s.CloseNow() }), limit)) //nolint:contextcheck // that of the request knows who pays
	return kind, data, err
}

// Close sends a close message, and waits until the client ends the connection: for CloseTimeout, and closeBytes that come before. The library does not
// read them: it looks at each byte by itself, which took a third of the work where a client came back after each close.
func (s *WebSocket) Close(code websocket.StatusCode, reason string) error {
	httpserver.Unpace(s.under.ctx)
	_ = s.under.SetDeadline(time.Now().Add(CloseTimeout))
	s.under.ends.Store(true)
	return s.Conn.Close(code, reason)
}

// upgrade keeps the connection that is taken over.
type upgrade struct {
	http.ResponseWriter
	ctx  context.Context // of the request, for below
	conn *below
}

// Hijack implements http.Hijacker.
func (u *upgrade) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(u.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	u.conn = &below{Conn: conn, ctx: u.ctx}
	came, _ := rw.Reader.Peek(rw.Reader.Buffered())
	httpserver.Spend(u.ctx, u.conn.frames.count(came)*frameBytes)
	return u.conn, rw, nil
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
	ctx    context.Context // of the request
	frames frames
	ends   atomic.Bool // the close message is sent
}

// Read implements net.Conn.
func (b *below) Read(p []byte) (int, error) {
	if b.ends.Load() {
		return 0, io.EOF
	}
	n, err := b.Conn.Read(p)
	httpserver.Spend(b.ctx, b.frames.count(p[:n])*frameBytes)
	return n, err
}

// Close implements net.Conn. What a client has sent and nobody has read would reset the connection, and take the close message from it.
func (b *below) Close() error {
	httpserver.Unpace(b.ctx)
	if b.ends.Load() {
		if half, ok := b.Conn.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
		_, _ = io.CopyN(io.Discard, b.Conn, closeBytes)
	}
	return b.Conn.Close()
}

// frames finds the frames in what comes of a WebSocket (RFC 6455, section 5.2).
type frames struct {
	header []byte // what has come of it
	rest   uint64 // bytes of the payload that are to come
}

// count reports how many frames begin in the next bytes, by the ends of their headers.
func (f *frames) count(p []byte) (n int) {
	for len(p) > 0 {
		if f.rest > 0 {
			part := min(f.rest, uint64(len(p)))
			f.rest -= part
			p = p[part:]
			continue
		}
		f.header = append(f.header, p[0])
		p = p[1:]
		if len(f.header) < 2 {
			continue
		}
		size, mask, length := uint64(f.header[1]&0x7f), int(f.header[1]>>7)*4, 0
		switch size {
		case 126:
			length = 2
		case 127:
			length = 8
		}
		if len(f.header) < 2+length+mask {
			continue
		}
		if length > 0 {
			size = 0
			for _, b := range f.header[2 : 2+length] {
				size = size<<8 | uint64(b)
			}
		}
		f.header, f.rest = f.header[:0], size
		n++
	}
	return n
}

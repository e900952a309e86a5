package ports

import (
	"bufio"
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/api/guard"
	"github.com/sandfarm/sandfarm/internal/httpserver"
)

const (
	// idleConnections and idlePort are how many connections without a request are kept, of all ports and of one.
	idleConnections, idlePort = 256, 16
	// idleTimeout closes them. It is short because each counts as a stream of its tenant.
	idleTimeout = 10 * time.Second
	// maxAnswerHeader bounds the header of an answer.
	maxAnswerHeader = 64 << 10
	// flushAfter is how long a part of an answer of known length waits for more. Other answers are sent on at once.
	flushAfter = 5 * time.Millisecond
	// copyBytes is the buffer of one request.
	copyBytes = 32 << 10
)

// Target is a port of a sandbox.
type Target struct {
	// Key is the same for requests that may share connections, and differs for all others. It consists of letters, digits, '_', '-' and '.'.
	Key  string
	Port int
	// Dial connects to the port.
	Dial func(ctx context.Context) (net.Conn, error)
}

// View is how a caller sees a port.
type View struct {
	// Path is what the server gets: escaped, with its leading slash.
	Path string
	// Prefix is the part of the caller's path before Path; empty: the port has an origin of its own.
	Prefix string
	// Public means that the address is all that it takes to use the port. Pages without an origin, as those of the port are, may read the answers.
	Public bool
	// AsIs leaves the paths of cookies and of redirects as the server sends them.
	AsIs bool
	// Hide removes from the request for the server what it must not see.
	Hide func(*http.Request)
	// Answered is called before an answer of the server is passed on.
	Answered func()
	// Fail answers with an error: that of Dial or of the body, or another one if the server did not answer in HTTP.
	Fail func(error)
}

// Proxy passes requests on. It is safe for concurrent use.
type Proxy struct {
	transport *http.Transport
	proxy     *httputil.ReverseProxy
	closing   <-chan struct{}
	stall     time.Duration
	buffers   bufferPool
}

// New makes a proxy. When closing is closed, streams end. stall is how long the client of an upgraded connection may take for a part of what the
// server sends.
func New(closing <-chan struct{}, stall time.Duration) *Proxy {
	p := &Proxy{closing: closing, stall: stall}
	p.transport = &http.Transport{
		DialContext: dial, DisableCompression: true, MaxIdleConns: idleConnections, MaxIdleConnsPerHost: idlePort, IdleConnTimeout: idleTimeout,
		MaxResponseHeaderBytes: maxAnswerHeader, ExpectContinueTimeout: time.Second,
	}
	p.proxy = &httputil.ReverseProxy{
		Transport: httpserver.BoundAnswers(p.transport), FlushInterval: flushAfter, BufferPool: &p.buffers, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		Rewrite: rewrite, ModifyResponse: p.answer, ErrorHandler: fail,
	}
	return p
}

// Close closes the connections that are not in use.
func (p *Proxy) Close() { p.transport.CloseIdleConnections() }

// passing is a request that is passed on.
type passing struct {
	Target
	View
	in  *http.Request
	out http.ResponseWriter
}

type passingKey struct{}

func of(ctx context.Context) *passing {
	p, _ := ctx.Value(passingKey{}).(*passing) // every request of the proxy has one
	return p
}

// Serve passes a request on and its answer back, also of a WebSocket. It returns when both are over.
func (p *Proxy) Serve(w http.ResponseWriter, r *http.Request, t Target, v View) {
	ctx, done := context.WithCancel(r.Context())
	defer done()
	in := r.WithContext(ctx)
	p.proxy.ServeHTTP(writer{w, ctx, p}, in.WithContext(context.WithValue(ctx, passingKey{}, &passing{Target: t, View: v, in: r, out: w})))
}

func dial(ctx context.Context, _, _ string) (net.Conn, error) { return of(ctx).Dial(ctx) }

// local is the address by which a server knows itself.
func (p *passing) local() string { return "localhost:" + strconv.Itoa(p.Port) }

// scheme is that of the caller's address, as far as it can be known.
func (p *passing) scheme() string { return guard.Scheme(p.in) }

// rewrite makes the request for the server. It has its own name as Host and, from its own pages, as Origin and Referer: many servers refuse
// others.
func rewrite(r *httputil.ProxyRequest) {
	p := of(r.In.Context())
	path, err := url.PathUnescape(p.Path)
	if err != nil {
		path = p.Path // Serve's caller has checked it
	}
	r.Out.URL = &url.URL{Scheme: "http", Host: p.Key, Path: path, RawPath: p.Path, RawQuery: r.In.URL.RawQuery, ForceQuery: r.In.URL.ForceQuery}
	r.Out.Host, r.Out.Trailer = p.local(), nil
	h := r.Out.Header
	if _, ok := h["User-Agent"]; !ok {
		h["User-Agent"] = nil // none is not ours
	}
	for name := range h {
		if strings.HasPrefix(name, "X-Forwarded-") || strings.Contains(name, "_") { // some servers take '_' for '-'
			delete(h, name)
		}
	}
	r.SetXForwarded()
	h.Set("X-Forwarded-Proto", p.scheme())
	if p.Prefix != "" {
		h.Set("X-Forwarded-Prefix", p.Prefix)
	}
	inside := "http://" + p.local()
	if sameHost(h.Get("Origin"), r.In.Host) {
		h.Set("Origin", inside)
	}
	if _, rest, ok := strings.Cut(h.Get("Referer"), "://"+r.In.Host+p.Prefix+"/"); ok {
		h.Set("Referer", inside+"/"+rest)
	}
	hideCookies(h)
	if p.Hide != nil {
		p.Hide(r.Out)
	}
}

// answer changes the answer of the server, and ends a stream when the farm stops.
func (p *Proxy) answer(res *http.Response) error {
	a := of(res.Request.Context())
	a.Answered()
	a.rewriteAnswer(res)
	own := a.out.Header()
	for name := range res.Header {
		if name != "Set-Cookie" { // those of both count
			own.Del(name)
		}
	}
	if res.StatusCode == http.StatusSwitchingProtocols || strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		body := res.Body
		ctx := res.Request.Context()
		go func() {
			select {
			case <-p.closing:
				_ = body.Close()
			case <-ctx.Done():
			}
		}()
	}
	return nil
}

// fail answers for a server that did not.
func fail(_ http.ResponseWriter, r *http.Request, err error) { of(r.Context()).Fail(err) }

// writer keeps answers before the answer from a writer that takes them for the answer, and ends upgraded connections.
type writer struct {
	http.ResponseWriter
	ctx   context.Context // of the request
	proxy *Proxy
}

// WriteHeader implements http.ResponseWriter.
func (w writer) WriteHeader(status int) {
	if status >= http.StatusOK || status == http.StatusSwitchingProtocols {
		w.ResponseWriter.WriteHeader(status)
	}
}

// Unwrap lets http.ResponseController reach the connection.
func (w writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Hijack implements http.Hijacker. The connection ends with its request and when the farm stops, also that of a client who neither reads nor sends: nothing
// else would end its copies.
func (w writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	go func() {
		select {
		case <-w.proxy.closing:
		case <-w.ctx.Done():
		}
		_ = conn.Close()
	}()
	own := upgraded{conn, w.proxy.stall}
	own.bound() // the header, which is written by rw
	return own, rw, nil
}

// upgraded is a connection whose client takes each part within stall.
type upgraded struct {
	net.Conn
	stall time.Duration
}

func (u upgraded) bound() { _ = u.SetWriteDeadline(time.Now().Add(u.stall)) }

// Write implements net.Conn.
func (u upgraded) Write(b []byte) (int, error) {
	u.bound()
	return u.Conn.Write(b)
}

// CloseWrite ends the direction to the client, where the connection can do so.
func (u upgraded) CloseWrite() error {
	if half, ok := u.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return u.Close()
}

type bufferPool struct{ pool sync.Pool }

// Get implements httputil.BufferPool.
func (b *bufferPool) Get() []byte {
	if buf, ok := b.pool.Get().(*[copyBytes]byte); ok {
		return buf[:]
	}
	return make([]byte, copyBytes)
}

// Put implements httputil.BufferPool.
func (b *bufferPool) Put(buf []byte) { b.pool.Put((*[copyBytes]byte)(buf)) }

package egressproxy

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/httpserver"
)

const (
	// maxInsideHeader bounds the header of a request inside a tunnel, insideHeaderTimeout the time to read it.
	maxInsideHeader     = 32 << 10
	insideHeaderTimeout = 30 * time.Second
)

// terminate ends the TLS of a CONNECT to a host that has secrets, with a certificate of the sandbox's authority. The requests inside are
// checked and forwarded like plain ones, each with a link and a connection of its own.
func (l *link) terminate(ctx context.Context, w http.ResponseWriter) {
	client, from, ok := l.hijack(w)
	if !ok {
		return
	}
	defer func() { _ = client.Close() }()
	p, raw := l.proxy, &clientConn{Conn: client, from: from, link: l}
	reason := ReasonNoTLS
	conn := tls.Server(raw, &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			reason = helloProblem(hello, l.target.host)
			if reason != "" {
				return nil, errRefused
			}
			reason = ReasonTrust
			return nil, nil // the configuration stays
		},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return l.certify(l.target.host) },
	})
	if err := conn.HandshakeContext(ctx); err != nil {
		l.end(Denied, reason)
		return
	}
	_ = client.SetDeadline(time.Time{})
	one := &oneConn{conn: &insideConn{Conn: conn}, over: make(chan struct{})}
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.inside(l.target.host, w, r) }), MaxHeaderBytes: maxInsideHeader,
		ReadHeaderTimeout: insideHeaderTimeout, IdleTimeout: p.limits.Idle, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		ConnState: func(_ net.Conn, state http.ConnState) {
			one.conn.header.Note(state)
			if state == http.StateClosed || state == http.StateHijacked {
				one.end()
			}
		},
	}
	_ = server.Serve(one)
	<-one.over
}

// helloProblem says why a ClientHello does not fit a host; "": it does.
func helloProblem(hello *tls.ClientHelloInfo, host string) string {
	switch normal, ok := farm.NormalHost(hello.ServerName); {
	case slices.Contains(hello.Extensions, extensionECH):
		return ReasonECH
	case hello.ServerName == "":
		return ReasonNoSNI
	case !ok || normal != host:
		return ReasonSNI
	}
	return ""
}

// inside carries a request that was inside the TLS of a tunnel to a host with secrets.
func (p *Proxy) inside(host string, w http.ResponseWriter, r *http.Request) {
	to := target{host: host, port: p.secure, method: shown(r.Method)}
	reason := ""
	name, port, err := net.SplitHostPort(r.Host)
	if err != nil {
		name, port = r.Host, ""
	}
	normal, ok := farm.NormalHost(name)
	switch upgrade := r.Header.Values("Upgrade"); {
	case r.Method == http.MethodConnect || r.URL.Host != "" || !strings.HasPrefix(r.RequestURI, "/"):
		reason = ReasonForm
	case !ok || normal != host || port != "" && portOf(port) != p.secure:
		reason = ReasonHostHeader
	case len(upgrade) > 0 && !onlyH2C(upgrade):
		reason = ReasonUpgrade
	}
	p.serve(w, r, to, reason)
}

// clientConn is the client's side of a tunnel whose TLS ends here. Its link is not idle while bytes pass.
type clientConn struct {
	net.Conn
	from io.Reader
	link *link
}

// Read reads from the client.
func (c *clientConn) Read(b []byte) (int, error) {
	n, err := c.from.Read(b)
	if n > 0 {
		c.link.idle.Reset(c.link.proxy.limits.Idle)
	}
	return n, err
}

// Write writes to the client.
func (c *clientConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if n > 0 {
		c.link.idle.Reset(c.link.proxy.limits.Idle)
	}
	return n, err
}

// insideConn is the inside of a tunnel whose TLS ends here.
type insideConn struct {
	*tls.Conn
	header httpserver.Header
}

// Read reads from the client.
func (c *insideConn) Read(b []byte) (int, error) { return c.header.Read(b, c.Conn.Read) }

// oneConn is a listener with one connection. After it Accept waits until the connection is over.
type oneConn struct {
	conn  *insideConn
	given bool
	once  sync.Once
	over  chan struct{}
}

var errOver = errors.New("the connection is over")

// Accept returns the connection, and later an error when it is over.
func (o *oneConn) Accept() (net.Conn, error) {
	if !o.given {
		o.given = true
		return o.conn, nil
	}
	<-o.over
	return nil, errOver
}

func (o *oneConn) end() { o.once.Do(func() { close(o.over) }) }

// Close does nothing: the connection ends by itself.
func (o *oneConn) Close() error { return nil }

// Addr is the connection's own.
func (o *oneConn) Addr() net.Addr { return o.conn.LocalAddr() }

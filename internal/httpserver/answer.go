package httpserver

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
)

// BoundAnswers makes a client of HTTP/1.1 of a transport with a DialContext, which it changes. It bounds the lines of the headers of answers as Header
// bounds those of requests; the transport itself bounds their bytes only.
func BoundAnswers(t *http.Transport) http.RoundTripper {
	dial, config := t.DialContext, t.TLSClientConfig
	t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &answerConn{Conn: conn}, nil
	}
	t.DialTLSContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		own := config.Clone()
		if own == nil {
			own = &tls.Config{MinVersion: tls.VersionTLS12}
		}
		own.ServerName, _, _ = net.SplitHostPort(address)
		if t.TLSHandshakeTimeout > 0 {
			var done context.CancelFunc
			ctx, done = context.WithTimeout(ctx, t.TLSHandshakeTimeout)
			defer done()
		}
		secure := tls.Client(conn, own)
		if err := secure.HandshakeContext(ctx); err != nil {
			_ = conn.Close()
			return nil, err
		}
		return &answerConn{Conn: secure}, nil
	}
	return answers{t}
}

type answers struct{ *http.Transport }

// RoundTrip implements http.RoundTripper.
func (a answers) RoundTrip(r *http.Request) (*http.Response, error) {
	var conn atomic.Pointer[answerConn] // the last one, if the transport tries again
	trace := &httptrace.ClientTrace{
		GotConn: func(got httptrace.GotConnInfo) {
			own, _ := got.Conn.(*answerConn)
			conn.Store(own)
		},
		PutIdleConn: func(err error) { // before the transport waits for the next answer
			if err == nil {
				conn.Load().next()
			}
		},
	}
	res, err := a.Transport.RoundTrip(r.WithContext(httptrace.WithClientTrace(r.Context(), trace)))
	switch own := conn.Load(); {
	case own == nil:
	case err == nil && res.Body != http.NoBody: // without a body the next header may have begun
		own.body.Store(true)
	case err != nil && own.lines.Over(headerLines): // the transport may complain of the line that is cut
		return nil, ErrHeaderLines
	}
	return res, err
}

// answerConn is a connection to a server. What is read of it belongs to the header of an answer, with informational ones before it, unless body is
// set: the transport begins to read before there is a request.
type answerConn struct {
	net.Conn
	body  atomic.Bool
	lines Lines
}

// next begins with the header of the next answer.
func (c *answerConn) next() {
	c.lines.Reset()
	c.body.Store(false)
}

// Read implements net.Conn.
func (c *answerConn) Read(b []byte) (int, error) {
	if c.body.Load() {
		return c.Conn.Read(b)
	}
	return c.lines.Read(b, c.Conn.Read, headerLines)
}

// CloseWrite ends the direction to the server, where the connection can do so.
func (c *answerConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Conn.Close()
}

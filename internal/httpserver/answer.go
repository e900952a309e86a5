package httpserver

import (
	"context"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"

	"github.com/sandfarm/sandfarm/internal/budget"
)

const (
	// maxChain is how many certificates a server may send. Those of public authorities send two to four.
	maxChain = 10
	// maxKeyBits is the size of the largest RSA key in them. Public authorities have no larger ones.
	maxKeyBits = 4096
	// maxHandshakeBytes is what a server may send until its connection is secure. Package tls reads 256 KiB of certificates, 848 small ones, before it
	// calls anything.
	maxHandshakeBytes = 32 << 10
)

// handshakeConn is a connection of which some bytes are read until it is done.
type handshakeConn struct {
	net.Conn
	read int
	done bool
}

// Read implements net.Conn.
func (c *handshakeConn) Read(b []byte) (int, error) {
	if c.done {
		return c.Conn.Read(b)
	}
	if c.read >= maxHandshakeBytes {
		return 0, &tls.CertificateVerificationError{Err: errChain}
	}
	n, err := c.Conn.Read(b[:min(len(b), maxHandshakeBytes-c.read)])
	c.read += n
	return n, err
}

// errChain is why a server's certificates are not verified.
var errChain = errors.New("the server sends more certificates, or larger keys, than are verified")

// BoundAnswers makes a client of HTTP/1.1 of a transport with a DialContext, which it changes. It bounds the lines of the headers of answers as Header
// bounds those of requests; the transport itself bounds their bytes only. Certificates are verified on a core of the tenant of the request's context
// (budget.Core), at most ten of a server, with RSA keys of at most 4096 bits.
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
		plain, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		conn := &handshakeConn{Conn: plain}
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
		// Package tls verifies before it calls anything, so its verification is replaced.
		own.InsecureSkipVerify = own.ServerName != ""
		own.VerifyConnection = func(s tls.ConnectionState) error { return verify(ctx, own, s.PeerCertificates) }
		secure := tls.Client(conn, own)
		if err := secure.HandshakeContext(ctx); err != nil {
			_ = conn.Close()
			return nil, err
		}
		conn.done = true
		return &answerConn{Conn: secure}, nil
	}
	return answers{t}
}

// verify verifies the certificates that a server sends as package tls does. The server chooses what that costs: with a hundred certificates of one subject
// and keys of 8192 bits it is a third of a second, none of them valid. So of the issuers with one subject only the first counts, which issued the
// certificate before it where they are in order.
func verify(ctx context.Context, config *tls.Config, sent []*x509.Certificate) error {
	refuse := func(err error) error {
		return &tls.CertificateVerificationError{UnverifiedCertificates: sent, Err: err}
	}
	if len(sent) > maxChain {
		return refuse(errChain)
	}
	options := x509.VerifyOptions{Roots: config.RootCAs, DNSName: config.ServerName, Intermediates: x509.NewCertPool()}
	subjects := map[string]bool{}
	for i, c := range sent {
		if key, ok := c.PublicKey.(*rsa.PublicKey); ok && key.N.BitLen() > maxKeyBits {
			return refuse(errChain)
		}
		if subject := string(c.RawSubject); i > 0 && !subjects[subject] {
			subjects[subject] = true
			options.Intermediates.AddCert(c)
		}
	}
	leave, err := budget.Core(ctx, budget.SmallBytes+1)
	if err != nil {
		return err
	}
	defer leave()
	if _, err := sent[0].Verify(options); err != nil {
		return refuse(err)
	}
	return nil
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

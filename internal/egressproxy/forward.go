package egressproxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/httpserver"
)

const (
	// maxAnswerHeader bounds the header of an answer.
	maxAnswerHeader = 64 << 10
	// continueTimeout is how long the body of a request with "Expect: 100-continue" is held back.
	continueTimeout = time.Second
	// plainBytes is the buffer of each answer.
	plainBytes = 32 << 10
	// lingerTimeout is how long a client may take to read why its request was ended.
	lingerTimeout = 2 * time.Second
)

// linkKey is the key of the link in the context of a plain request.
type linkKey struct{}

// newPlain makes the part that forwards plain requests. Each has a connection of its own: hosts that read a request differently than we do
// cannot mistake a part of one for the next, and the report of a connection is that of a request.
func (p *Proxy) newPlain(roots *x509.CertPool) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite: rewrite,
		Transport: httpserver.BoundAnswers(&http.Transport{
			Proxy: nil, DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxAnswerHeader,
			ExpectContinueTimeout: continueTimeout,
			TLSClientConfig:       &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}, TLSHandshakeTimeout: p.limits.Dial,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return linkOf(ctx).dial(ctx)
			},
		}),
		ModifyResponse: guardAnswer,
		FlushInterval:  -1,
		BufferPool:     plainBuffers{},
		ErrorLog:       slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			l := linkOf(r.Context())
			verdict, reason := verdictOf(err)
			switch _, connected := l.outcome(); {
			case errors.Is(err, errEcho):
				verdict, reason = Denied, ReasonEcho
			case errors.Is(err, errEncoded):
				verdict, reason = Denied, ReasonEncoded
			case certificateProblem(err):
				verdict, reason = Failed, ReasonCert
			case connected:
				verdict, reason = Failed, ReasonBroken
			}
			l.end(verdict, reason)
			reason, _ = l.outcome()
			refuse(w, l.target, reason)
		},
	}
}

func linkOf(ctx context.Context) *link {
	l, _ := ctx.Value(linkKey{}).(*link)
	return l
}

// forward carries one plain request.
func (l *link) forward(w http.ResponseWriter, r *http.Request) {
	control := http.NewResponseController(w)
	l.onInterrupt(func() {
		_ = control.SetReadDeadline(time.Unix(1, 0))
		_ = control.SetWriteDeadline(time.Now().Add(lingerTimeout))
	})
	defer func() {
		if broken := recover(); broken != nil { // the reverse proxy ends an answer that broke off so
			l.end(Failed, ReasonBroken)
			panic(broken)
		}
	}()
	if len(l.secrets) > 0 {
		w = finalOnly{w}
	}
	// What an answer, or the certificate of its host, costs is the tenant's work: a process has few cores.
	ctx, hold := l.proxy.budget.With(context.WithValue(r.Context(), linkKey{}, l), l.proxy.tenant, 0)
	defer hold.Release()
	l.proxy.plain.ServeHTTP(w, r.WithContext(ctx))
}

// notPassed are headers that are not for the host, and those by which some servers take another method than that of the request.
var notPassed = [...]string{"Connection", "Upgrade", "Http2-Settings", "X-Http-Method-Override", "X-Http-Method", "X-Method-Override"}

// dashed is the name of a header as servers see it that take an underscore for a dash.
func dashed(name string) string { return http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-")) }

// rewrite makes the request to the host from that of the client. The reverse proxy has removed what is meant for one hop.
func rewrite(r *httputil.ProxyRequest) {
	l := linkOf(r.In.Context())
	to := l.target
	r.Out.URL.Scheme, r.Out.URL.Host = "http", to.host
	if len(l.secrets) > 0 {
		r.Out.URL.Scheme = "https"
	}
	if to.port != schemePort(r.Out.URL.Scheme) {
		r.Out.URL.Host = net.JoinHostPort(to.host, strconv.Itoa(to.port))
	}
	r.Out.Host = r.Out.URL.Host
	r.Out.URL.RawQuery = r.In.URL.RawQuery // also what Go cannot parse
	r.Out.Trailer = nil
	for name := range r.Out.Header {
		if same := dashed(name); slices.Contains(notPassed[:], same) || strings.HasPrefix(same, "Proxy-") {
			delete(r.Out.Header, name)
		}
	}
	if len(l.secrets) > 0 {
		addSecrets(r.Out.Header, l.secrets)
	}
}

// schemePort is the port that a URL of a scheme need not name.
func schemePort(scheme string) int {
	if scheme == "https" {
		return farm.SecretPort
	}
	return httpPort
}

// plainBuffers has the buffers of answers.
type plainBuffers struct{}

var plainPool = sync.Pool{New: func() any { b := make([]byte, plainBytes); return &b }}

// Get returns a buffer.
func (plainBuffers) Get() []byte { return *plainPool.Get().(*[]byte) } //nolint:errcheck // the pool holds nothing else

// Put takes one back.
func (plainBuffers) Put(b []byte) { plainPool.Put(&b) }

const (
	recordHeader    = 5
	recordFirst     = 20 // the types of records: change of ciphers, alert, handshake, data, heartbeat
	recordLast      = 24
	maxRecordBytes  = 16<<10 + 2048 // of what follows the header
	messageServer   = 2             // the type of a ServerHello
	serverRandomAt  = recordHeader + 4 + 2
	serverRandomEnd = serverRandomAt + 32
)

// retryRandom marks a ServerHello as a HelloRetryRequest (RFC 8446, 4.1.3).
var retryRandom = []byte{
	0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91,
	0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
}

// errRefused means that the tunnel was ended for what the client sent.
var errRefused = errors.New("the tunnel was refused")

// decision is what the first record of the host asks the client for. It is made once.
type decision struct {
	made  chan struct{}
	retry bool // a second ClientHello
}

// decide reads the first record of the host for the decision, and returns all that it read.
func (d *decision) decide(host io.Reader) (read []byte, err error) {
	defer close(d.made)
	read = make([]byte, recordHeader, serverRandomEnd)
	n, err := io.ReadFull(host, read)
	if err != nil {
		return read[:n], err
	}
	if read[0] != recordHandshake || binary.BigEndian.Uint16(read[3:]) < serverRandomEnd-recordHeader {
		return read, nil
	}
	n, err = io.ReadFull(host, read[recordHeader:serverRandomEnd])
	read = read[:recordHeader+n]
	d.retry = err == nil && read[recordHeader] == messageServer && bytes.Equal(read[serverRandomAt:], retryRandom)
	return read, err
}

// untilDecided sends on what the client sends before the host has decided: early data. If the host asks for a second ClientHello, that is
// checked like the first: some servers take its name, and no other message may come before. The error is io.EOF if the client has ended
// its direction.
func (l *link) untilDecided(ctx context.Context, from io.Reader, host *hostConn, d *decision) error {
	for {
		header := make([]byte, recordHeader)
		n, err := io.ReadFull(from, header)
		if err != nil {
			_, _ = host.Write(header[:n])
			return io.EOF
		}
		if header[0] == recordHandshake {
			<-d.made // no client continues with its handshake before
		}
		select {
		case <-d.made:
			if !d.retry {
				_, err := host.Write(header)
				return err
			}
		default:
		}
		size := binary.BigEndian.Uint16(header[3:])
		switch {
		case header[0] < recordFirst || header[0] > recordLast || size > maxRecordBytes:
			l.end(Denied, ReasonNoTLS)
			return errRefused
		case header[0] == recordHandshake:
			raw, reason := readHello(ctx, io.MultiReader(bytes.NewReader(header), from), l.target.host)
			if reason != "" {
				l.end(Denied, reason)
				return errRefused
			}
			_, err := host.Write(raw)
			return err
		}
		if _, err := host.Write(header); err != nil {
			return err
		}
		if sent, err := io.CopyN(host, from, int64(size)); err != nil {
			if sent < int64(size) && errors.Is(err, io.EOF) {
				return io.EOF
			}
			return err
		}
	}
}

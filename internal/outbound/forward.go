package outbound

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
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
		Transport: &http.Transport{
			Proxy: nil, DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxAnswerHeader,
			ExpectContinueTimeout: continueTimeout,
			TLSClientConfig:       &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}, TLSHandshakeTimeout: p.limits.Dial,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return linkOf(ctx).dial(ctx)
			},
		},
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
	l.proxy.plain.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), linkKey{}, l)))
}

// overrides are headers by which some servers take another method than that of the request.
var overrides = [...]string{"X-Http-Method-Override", "X-Http-Method", "X-Method-Override"}

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
	for _, name := range append([]string{"Connection", "Upgrade", "Http2-Settings"}, overrides[:]...) {
		r.Out.Header.Del(name)
	}
	for name := range r.Out.Header {
		if strings.HasPrefix(name, "Proxy-") {
			r.Out.Header.Del(name)
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
func (plainBuffers) Get() []byte { return *plainPool.Get().(*[]byte) } //nolint:errcheck,forcetypeassert // the pool holds nothing else

// Put takes one back.
func (plainBuffers) Put(b []byte) { plainPool.Put(&b) }

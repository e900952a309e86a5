package index

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// headerTimeout is how long a caller may take for its headers: all callers are on this host.
const headerTimeout = 10 * time.Second

// headerMax is how much a caller's headers may hold; installers send under 2 KiB.
const headerMax = 32 << 10

// Server is an Index that listens on a free port of loopback.
type Server struct {
	index *Index
	http  *http.Server
	root  string
	done  chan error
}

// Serve starts a Server; Close ends it.
func Serve(ctx context.Context, cfg Config) (*Server, error) {
	x, err := New(cfg)
	if err != nil {
		return nil, err
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for package index: %w", errors.Join(err, x.Close()))
	}
	s := &Server{
		index: x,
		http:  &http.Server{Handler: x, ReadHeaderTimeout: headerTimeout, MaxHeaderBytes: headerMax, ErrorLog: slog.NewLogLogger(x.log.Handler(), slog.LevelError)},
		root:  "http://" + l.Addr().String(),
		done:  make(chan error, 1),
	}
	go func() { s.done <- s.http.Serve(l) }()
	return s, nil
}

// URL is the address of the Python index, as installers want it.
func (s *Server) URL() string { return s.root + "/pypi/simple/" }

// NpmURL is the address of the npm registry, as npm wants it.
func (s *Server) NpmURL() string { return s.root + "/npm/" }

// Stats returns the counters of its index.
func (s *Server) Stats() Stats { return s.index.Stats() }

// Close stops the server at once and waits until it and its index have ended.
func (s *Server) Close() error {
	err := s.http.Close()
	if served := <-s.done; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	if err = errors.Join(err, s.index.Close()); err != nil {
		return fmt.Errorf("close package index: %w", err)
	}
	return nil
}

// pathMax is the longest path that is accepted; real ones have under 300 bytes.
const pathMax = 2048

// ServeHTTP serves pages and files below /pypi/ and /npm/. Of a request it uses only the method, the path, the Host and the headers
// for content negotiation, ranges and conditions.
func (x *Index) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x.count.requests.Add(1)
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "Packages are read with GET and HEAD.", http.StatusMethodNotAllowed)
		return
	}
	if r.ContentLength != 0 {
		w.Header().Set("Connection", "close") // its body is not read
		http.Error(w, "A request for a package has no body.", http.StatusBadRequest)
		return
	}
	if r.URL.Host != "" || r.URL.Opaque != "" {
		http.Error(w, "This is a package index, not a proxy.", http.StatusBadRequest)
		return
	}
	parts, ok := split(r.URL.EscapedPath())
	if !ok || len(parts) < 2 {
		x.fail(w, r, nothing())
		return
	}
	switch parts[0] {
	case "pypi":
		x.servePyPI(w, r, parts[1:])
	case "npm":
		x.serveNpm(w, r, parts[1:])
	default:
		x.fail(w, r, nothing())
	}
}

func nothing() error {
	return farm.NotFoundf("There is nothing here: this is a package index with /pypi/simple/PROJECT/ and /npm/PACKAGE.")
}

// split splits a path. A part may contain an escaped slash, as npm writes scoped names, but no "..".
func split(escaped string) ([]string, bool) {
	rest, ok := strings.CutPrefix(escaped, "/")
	if !ok || len(escaped) > pathMax {
		return nil, false
	}
	parts := strings.Split(rest, "/")
	for i, part := range parts {
		plain, err := url.PathUnescape(part)
		if err != nil || strings.ContainsFunc(plain, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\\' }) {
			return nil, false
		}
		for step := range strings.SplitSeq(plain, "/") {
			if step == "." || step == ".." {
				return nil, false
			}
		}
		parts[i] = plain
	}
	return parts, true
}

// preference parses one element of an Accept header.
func preference(part string) (kind string, q float64) {
	kind, params, err := mime.ParseMediaType(part)
	if err != nil {
		return "", 0
	}
	q = 1
	if text, ok := params["q"]; ok {
		if q, err = strconv.ParseFloat(text, 64); err != nil || q < 0 || q > 1 {
			return "", 0
		}
	}
	return kind, q
}

// fail responds with the message of an error.
func (x *Index) fail(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // the caller has left
	}
	status := http.StatusInternalServerError
	switch farm.CodeOf(err) {
	case farm.CodeNotFound:
		status = http.StatusNotFound
	case farm.CodeInvalid:
		status = http.StatusBadRequest
	case farm.CodeUnavailable, farm.CodeTooLarge:
		status = http.StatusBadGateway
		if errors.Is(err, errSilent) || errors.Is(err, errStalled) { // a retry would time out as well
			status = http.StatusGatewayTimeout
		}
	}
	if status >= http.StatusInternalServerError {
		x.warn(context.WithoutCancel(r.Context()), "package index cannot serve a request", "path", r.URL.Path, "error", err)
	}
	w.Header().Set("Cache-Control", "no-store")
	http.Error(w, farm.MessageOf(err), status)
}

// servedWithin bounds the sending of a page: all callers are on this host, and each holds a page in memory.
const servedWithin = time.Minute

// limited limits how long a page is sent. The returned function ends that.
func limited(w http.ResponseWriter) func() {
	control := http.NewResponseController(w)
	_ = control.SetWriteDeadline(time.Now().Add(servedWithin)) // not every writer has deadlines
	return func() {
		_ = control.SetWriteDeadline(time.Time{}) // the next request of the connection has its own deadline
	}
}

const (
	warnAtOnce = 20          // warnings in a row that are logged
	warnAgain  = time.Second // interval of further ones
)

// pace limits warnings that callers can cause.
type pace struct {
	mu   sync.Mutex
	left float64
	last time.Time
}

// take reports whether one more may be logged.
func (p *pace) take(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last.IsZero() {
		p.left = warnAtOnce
	} else {
		p.left = min(warnAtOnce, p.left+max(0, now.Sub(p.last).Seconds()/warnAgain.Seconds()))
	}
	p.last = now
	if p.left < 1 {
		return false
	}
	p.left--
	return true
}

// warn logs a warning, at level debug if there are too many.
func (x *Index) warn(ctx context.Context, message string, args ...any) {
	level := slog.LevelDebug
	if x.paced.take(time.Now()) {
		level = slog.LevelWarn
	}
	x.log.Log(ctx, level, message, args...)
}

// Stats are the counters of an Index.
type Stats struct {
	Requests         int64 // including rejected ones
	Hits             int64 // pages and files served without upstream
	Coalesced        int64 // requests that joined another one for the same thing
	UpstreamRequests int64 // HTTP requests to upstream; redirects are not counted
	UpstreamFiles    int64 // started downloads of files
	UpstreamBytes    int64 // bytes of bodies
	CacheErrors      int64 // failed calls of the cache
	Trimmed          int64 // values that Trim removed
}

// counters are the live counters behind Stats.
type counters struct {
	requests, hits, coalesced, upstreamRequests, upstreamFiles, upstreamBytes, cacheErrors, trimmed atomic.Int64
}

// Stats returns the current counters.
func (x *Index) Stats() Stats {
	c := &x.count
	return Stats{
		Requests: c.requests.Load(), Hits: c.hits.Load(), Coalesced: c.coalesced.Load(),
		UpstreamRequests: c.upstreamRequests.Load(), UpstreamFiles: c.upstreamFiles.Load(), UpstreamBytes: c.upstreamBytes.Load(),
		CacheErrors: c.cacheErrors.Load(), Trimmed: c.trimmed.Load(),
	}
}

package httpserver

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"golang.org/x/time/rate"
)

// unreadTimeout is how long a server waits for a body that no handler reads: that of a request without a key, for example.
const unreadTimeout = 5 * time.Second

// connKey is the key of the *counted of a request.
type connKey struct{}

// Known says that the caller of a request is known, such as by a key: its connection is the last to lose its place while it waits for the client. After
// the bytes that the connection writes until its next request, and before it reads on after those that it has read, it waits for the limiter, whose burst is at least
// 64 KiB, unless ctx has ended; also if it is hijacked. If the caller leaves while it waits, what it waits for stays reserved, but none puts the limiter further into
// the future than some five seconds. nil bounds nothing. At its first body of more than 64 KiB of a known caller the connection may get a larger buffer for what
// it receives, see Buffers. With TLS it does nothing.
func Known(ctx context.Context, tenant string, bytes *rate.Limiter) {
	conn, ok := ctx.Value(connKey{}).(*counted)
	if !ok {
		return
	}
	conn.keepOpen()
	conn.in.mu.Lock()
	conn.known = true
	if conn.leave == nil && conn.sendsLong() {
		conn.leave = conn.in.raise(tenant, conn.TCPConn)
	}
	conn.in.mu.Unlock()
	if bytes == nil {
		return
	}
	conn.setPace(func(n int) { take(ctx, conn.free, bytes, n) })
}

// take waits until a limiter has n bytes, or ctx ends or free is closed.
func take(ctx context.Context, free <-chan struct{}, bytes *rate.Limiter, n int) {
	for ; n > 0; n -= chunk {
		for over := debt(bytes) - mostDebt; over > 0; over = debt(bytes) - mostDebt {
			if !await(ctx, free, over) {
				return
			}
		}
		await(ctx, free, bytes.ReserveN(time.Now(), min(n, chunk)).Delay())
	}
}

// mostDebt is how far callers may put a limiter into the future. Who comes then waits until it is less before it reserves its bytes: if it leaves meanwhile, it
// takes nothing along. A reservation that is cancelled gives nothing back once there is one behind it.
const mostDebt = 5 * time.Second

// debt is how long a limiter takes to earn what is reserved of it, an hour at most.
func debt(bytes *rate.Limiter) time.Duration {
	seconds := max(0, -bytes.Tokens()) / float64(bytes.Limit())
	return time.Duration(min(seconds, time.Hour.Seconds()) * float64(time.Second))
}

// await waits, or until ctx ends or free is closed, and reports whether it has waited. Limiter.WaitN would not wait at all where ctx has a deadline before the end.
func await(ctx context.Context, free <-chan struct{}, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	case <-free:
		return false
	}
}

// Spend counts n bytes more for the connection of a request as if it had read them, see Known: for work that costs more than its bytes.
func Spend(ctx context.Context, n int) {
	if conn, ok := ctx.Value(connKey{}).(*counted); ok {
		conn.owe(n)
	}
}

// Pay waits for what the connection of a request has read, see Known. Who gives a client a time to send calls it before, so that the wait is not the
// client's.
func Pay(ctx context.Context) {
	if conn, ok := ctx.Value(connKey{}).(*counted); ok {
		conn.pay()
	}
}

// Unpace lets what the connection of a request still moves pass without a wait for its limiter, see Known: the connection ends.
func Unpace(ctx context.Context) {
	if conn, ok := ctx.Value(connKey{}).(*counted); ok {
		conn.unpace()
	}
}

// endPipelines ends the connection of a caller who is not known after an answer to a request that came before its client had the answer to the one before. Such a
// connection never waits for its client: it keeps a core until the scheduler of Go takes it away after 10 ms, and with a hundred of them the requests of all others
// wait a second. Clients send pipelined requests again (RFC 9112, 9.3.2); few know them.
func endPipelines(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if conn, ok := r.Context().Value(connKey{}).(*counted); ok {
			if conn.begins(func() { w.Header().Del("Connection") }) {
				w.Header().Set("Connection", "close")
			}
			defer conn.ends()
		}
		next.ServeHTTP(w, r)
	})
}

// maxParameters is how many parameters the query of a request has: of 9,000, which a header may have, to parse them takes 4 ms of a core, also of a caller
// without a key.
const maxParameters = 1000

// boundQueries refuses requests with more parameters.
func boundQueries(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Count(r.URL.RawQuery, "&") >= maxParameters {
			http.Error(w, fmt.Sprintf("The query has more than %d parameters.", maxParameters), http.StatusRequestURITooLong)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// awaitBodies gives the body of each request a deadline until it is first read. A server reads what handlers leave of a body before it answers, and
// would wait for ever for one that never comes. Until it has come, its connection waits for its client, see limited: where the handler has returned, as one whose
// caller is not known, since what bounds requests of a caller has ended.
func awaitBodies(next http.Handler, timeout time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			control := http.NewResponseController(w)
			_ = control.SetReadDeadline(time.Now().Add(timeout))
			body := &awaited{ReadCloser: r.Body, control: control, whole: func() {}}
			if conn, ok := r.Context().Value(connKey{}).(*counted); ok {
				conn.awaitBody(r.ContentLength)
				body.whole = func() { conn.awaitBody(0) }
				defer conn.forgetCaller()
			}
			r.Body = body
		}
		next.ServeHTTP(w, r)
	})
}

type awaited struct {
	io.ReadCloser
	control *http.ResponseController
	read    bool
	whole   func()
}

// Read implements io.Reader.
func (a *awaited) Read(p []byte) (int, error) {
	if !a.read {
		a.read = true
		_ = a.control.SetReadDeadline(time.Time{})
	}
	n, err := a.ReadCloser.Read(p)
	if err != nil {
		a.whole() // from now on the server reads to notice that the client leaves
	}
	return n, err
}

// Body is the body of a request for a handler that sets a deadline for each read itself.
func Body(r *http.Request) io.ReadCloser {
	if first, ok := r.Body.(*awaited); ok {
		first.read = true
	}
	return r.Body
}

// PaceBytes is how much of a body that is held in memory must come in a second: less than links in use bring.
const PaceBytes = 16 << 10

// Pace is the time that a sender may take for what comes next: each byte that has come adds to it, up to the grace. Only the time in which somebody
// waits for the sender counts.
type Pace struct {
	grace, left time.Duration
	total       time.Duration // left for all that comes
}

// NewPace makes a Pace. total bounds the time for all that comes.
func NewPace(grace, total time.Duration) *Pace { return &Pace{grace, grace, total} }

// Allows is how long the next read may take.
func (p *Pace) Allows() time.Duration { return min(p.left, p.total) }

// Took says that n bytes took so long to come.
func (p *Pace) Took(n int, d time.Duration) {
	p.left = min(p.grace, p.left-d+time.Duration(n)*time.Second/PaceBytes)
	p.total -= d
}

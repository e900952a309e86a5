// Package client is the worker's side of the agent protocol: HTTP over a yamux session on one stream. It trusts
// nothing the agent sends: sizes, sequence numbers and error codes are checked. Errors are *farm.Error: the agent's own
// code if it sent one, unavailable if the stream is broken.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/yamux"
	"go.opentelemetry.io/otel/trace"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/httpserver"
	"github.com/sandfarm/sandfarm/internal/tracing"
)

const (
	// callTimeout bounds calls that the agent answers immediately; it is long because a sandbox may be short of CPU.
	callTimeout = 30 * time.Second
	// kernelTimeout bounds the start of a kernel, which imports many modules; several may start at once.
	kernelTimeout = 3 * time.Minute
	// streamWindow is what the agent may send ahead on one stream, and so what is in memory of each whose receiver is slow: the least that yamux
	// has. With a round trip of 5 ms it allows 50 MB/s on one stream.
	streamWindow = 256 << 10
	// writeTimeout is how long a write may make no progress before the session counts as broken.
	writeTimeout = 30 * time.Second
)

// Options tune a client. The zero value is usable.
type Options struct {
	Logger *slog.Logger // nil: silent

	// Egress answers the connections that the agent opens, each one request. Requests have the remote address "sandbox"; the sandbox controls
	// everything else in them. Those in origin form, which are for the package index, come without a body. Nil: a stream that the agent
	// opens ends the session.
	Egress http.Handler

	// Proxy says that Egress is a proxy as well: requests in absolute form have bodies, and Egress may take over connections. The agent may then
	// open agent.MaxProxyStreams of them and send any amount, as fast as Egress reads. False: requests are small.
	Proxy bool

	// Admit is asked before anything of a stream that the agent opens is read; release is called when the stream has ended. False: the stream
	// is answered with 503, unread. Nil: all are admitted.
	Admit func() (release func(), ok bool)
}

// Client talks to the agent of one sandbox. It is safe for concurrent use.
type Client struct {
	caller
	session *yamux.Session
	live    http.Client // of which the live path uses the Transport
	once    sync.Once
	closed  error
}

// New creates a client on a stream to the agent. The client then owns the stream: Close closes it.
func New(conn io.ReadWriteCloser, o Options) (*Client, error) {
	config := yamux.DefaultConfig()
	config.MaxStreamWindowSize = streamWindow
	config.ConnectionWriteTimeout = writeTimeout
	config.AcceptBacklog = acceptBacklog
	if o.Proxy { // yamux resets streams beyond it, and programs open many connections at once
		config.AcceptBacklog += agent.MaxProxyStreams
	}
	config.LogOutput = io.Discard
	session, err := yamux.Client(agent.Joined(agent.FewPings(conn)), config)
	if err != nil {
		return nil, fmt.Errorf("open session: %w", err)
	}
	c := &Client{session: session}
	calls := &callStreams{session: session}
	go serveEgress(session, o)
	c.http = &http.Client{Transport: httpserver.BoundAnswers(&http.Transport{
		DialContext:        calls.dial,
		DisableCompression: true,
		// The largest header is the description of a file: a path of 4 KiB, escaped.
		MaxResponseHeaderBytes: 64 << 10,
		MaxIdleConnsPerHost:    8,
		IdleConnTimeout:        time.Minute,
		WriteBufferSize:        64 << 10,
		ReadBufferSize:         64 << 10,
	})}
	c.live = http.Client{Transport: httpserver.BoundAnswers(&http.Transport{
		DialContext:        calls.dial,
		DisableCompression: true, MaxResponseHeaderBytes: 64 << 10, MaxIdleConnsPerHost: 8, IdleConnTimeout: time.Minute,
	})}
	return c, nil
}

// Done is closed when the session has ended, for whatever reason.
func (c *Client) Done() <-chan struct{} { return c.session.CloseChan() }

// Close ends the session and closes its stream. It is idempotent.
func (c *Client) Close() error {
	c.once.Do(func() {
		c.closed = c.session.Close()
		c.http.CloseIdleConnections()
		c.live.CloseIdleConnections()
	})
	return c.closed
}

func unavailable(err error, message string) error {
	return farm.Wrap(err, farm.CodeUnavailable, "%s", message)
}

// Bounds of a JSON answer. A value of a byte takes hundreds in memory once it is decoded, so the values are counted first, see budget.Values.
const (
	maxJSON = 64 << 20 // of the largest lists
	// shortJSON and fewValues are for what describes one thing, or a few.
	shortJSON, fewValues = 1 << 20, 4 << 10
)

// answer is what a call may be answered with.
type answer struct {
	into   any   // what it is decoded into; nil: it is read and dropped
	bytes  int64 // at most
	values int   // at most
}

// short is the answer to a call that describes one thing, or a few.
func short(into any) answer { return answer{into, shortJSON, fewValues} }

// list is the answer to a call that lists up to n things of some values each. An empty thing counts as two values, so a few times n may come:
// the caller checks the length.
func list(into any, n, each int) answer { return answer{into, maxJSON, n*each + fewValues} }

const (
	maxError  = 64 << 10 // of the body of an error
	maxReason = 1 << 10  // of what it says: that is logged, and code that has taken over its agent chooses it
)

// caller sends requests to an agent, over its own session or over the live path.
type caller struct{ http *http.Client }

type errorBody struct {
	Code    farm.Code `json:"code"`
	Message string    `json:"message"`
}

// do sends a request and returns the response if its status is a success; any other outcome is a *farm.Error.
func (c caller) do(ctx context.Context, method, path string, query url.Values, body io.Reader) (_ *http.Response, err error) {
	ctx, end := tracing.Start(ctx, "agent", trace.SpanKindClient, "http.request.method", method, "url.path", path)
	defer func() { end(err) }() // a stream outlives this call
	target := "http://agent" + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, target, body)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	if parent := tracing.Parent(ctx); parent != "" {
		req.Header.Set("Traceparent", parent)
	}
	return c.send(req)
}

// send sends a request that is made. It returns what do does.
func (c caller) send(req *http.Request) (*http.Response, error) {
	res, err := c.http.Do(req)
	if err != nil {
		if coded, ok := errors.AsType[*farm.Error](err); ok { // of the live path
			return nil, coded
		}
		if cause := req.Context().Err(); cause != nil && errors.Is(err, cause) {
			return nil, unavailable(err, "The sandbox did not answer in time.")
		}
		return nil, unavailable(err, "The connection to the sandbox is broken.")
	}
	if res.StatusCode < 300 {
		return res, nil
	}
	defer func() { _ = res.Body.Close() }()
	return nil, ReadError(res)
}

// ReadError converts the agent's error to a *farm.Error; codes that are not in the contract become internal. A message of more than 1 KiB is cut.
func ReadError(res *http.Response) error {
	raw, err := io.ReadAll(io.LimitReader(res.Body, maxError))
	if err != nil {
		return unavailable(err, "The connection to the sandbox is broken.")
	}
	var body errorBody
	if err := json.Unmarshal(raw, &body); err != nil {
		return farm.Errorf(farm.CodeInternal, "agent answered %d without a reason", res.StatusCode)
	}
	if len(body.Message) > maxReason {
		body.Message = strings.ToValidUTF8(body.Message[:maxReason], "") + "…"
	}
	switch body.Code {
	case farm.CodeInvalid, farm.CodeNotFound, farm.CodeConflict, farm.CodeTooLarge, farm.CodeExhausted, farm.CodeUnavailable:
		return farm.Errorf(body.Code, "%s", body.Message)
	default:
		return farm.Errorf(farm.CodeInternal, "agent: %s", body.Message)
	}
}

// call sends in (nil: no body) as JSON and reads a short answer into out (nil: discarded), with its own timeout.
func (c caller) call(ctx context.Context, timeout time.Duration, method, path string, query url.Values, in, out any) error {
	return c.callFor(ctx, timeout, method, path, query, in, short(out))
}

// callFor is call for an answer of any size.
func (c caller) callFor(ctx context.Context, timeout time.Duration, method, path string, query url.Values, in any, out answer) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var body io.Reader
	if in != nil {
		raw, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("encode request: %w", err)
		}
		body = bytes.NewReader(raw)
	}
	res, err := c.do(ctx, method, path, query, body)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	return decode(ctx, res, out)
}

// read reads up to limit bytes of a body. A long one is charged to the request of ctx, see budget.ReadAnswer.
func read(ctx context.Context, body io.Reader, limit int64) ([]byte, error) {
	raw, err := budget.ReadAnswer(ctx, body, limit)
	switch {
	case errors.Is(err, budget.ErrTooLong):
		return nil, farm.Errorf(farm.CodeTooLarge, "The sandbox answered with more than %d bytes.", limit)
	case farm.CodeOf(err) == farm.CodeExhausted:
		return nil, err
	case err != nil:
		return nil, unavailable(err, "The connection to the sandbox is broken.")
	}
	return raw, nil
}

// decode reads a bounded JSON answer to its end, so that the underlying stream can be reused. It decodes a large one on a core of the tenant of ctx.
func decode(ctx context.Context, res *http.Response, out answer) error {
	raw, err := read(ctx, res.Body, out.bytes)
	if err != nil {
		return err
	}
	if out.into == nil {
		return nil
	}
	leave, err := budget.Core(ctx, len(raw))
	if err != nil {
		return err
	}
	defer leave()
	if budget.Values(raw) > out.values {
		return farm.Errorf(farm.CodeTooLarge, "The sandbox answered with more than %d values.", out.values)
	}
	if err := json.Unmarshal(raw, out.into); err != nil {
		return fmt.Errorf("decode answer of the agent: %w", err)
	}
	return nil
}

// SetDeadline sends the agent the time left until its sandbox's deadline. A few seconds after the deadline the agent
// ends the sandbox itself, if no worker has done so.
func (c *Client) SetDeadline(ctx context.Context, in time.Duration) error {
	query := url.Values{"in_ms": {strconv.FormatInt(max(in, 0).Milliseconds(), 10)}}
	return c.call(ctx, callTimeout, http.MethodPut, "/v1/deadline", query, nil, nil)
}

// SuspendDeadline replaces the deadline by one that does not come while the sandbox is hibernated: the agent ends the sandbox when it has run for
// awake without another deadline. Agents that are older than that have the deadline after in.
func (c *Client) SuspendDeadline(ctx context.Context, awake, in time.Duration) error {
	query := url.Values{"in_ms": {strconv.FormatInt(in.Milliseconds(), 10)}, "awake_ms": {strconv.FormatInt(awake.Milliseconds(), 10)}}
	return c.call(ctx, callTimeout, http.MethodPut, "/v1/deadline", query, nil, nil)
}

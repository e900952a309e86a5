// Package client is the Go client of a Sandfarm: create sandboxes, run code and commands in them, follow a job's events,
// move files and download artifacts. It uses only the public API and has no state but its connections: a Client may be
// used by any number of goroutines.
//
// It is used from a checkout of Sandfarm, and needs no other module but one for WebSockets. In your own module:
//
//	go mod edit -replace github.com/sandfarm/sandfarm=/path/to/the/checkout
//	go mod tidy # once a file imports github.com/sandfarm/sandfarm/client
//
// Begin with [New]. Everything that takes time is a job: [Client.Run], [Client.Execute] and their like return it as it was accepted, or with
// [WithWait] when it is final; [Client.Wait] waits for one, [Client.Events] follows it, [Failure] says whether the farm could complete
// it. [Client.Files] are the files of a workspace, [Client.FS] all files of a sandbox, [Client.StartProcess] and [Client.DialPort] reach what runs
// beside jobs. Requests and answers are the types of package wire. Lists are iterators.
//
// A request that starts work carries an Idempotency-Key, so a retry after a broken connection runs nothing twice. Reads
// and those POSTs are retried, a few times with backoff, when the connection breaks, the farm answers 503, or a proxy 502 or 504. Every request
// but an upload is retried after a 429. A Retry-After is honoured; if it is longer than 10 seconds, the error is returned
// at once. Errors of the farm are *Error.
//
// An exception in the code or a failed command is a result, not an error: see [wire.ExecuteResult].
package client

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
)

// DefaultURL is the address of a farm with default settings.
const DefaultURL = "http://127.0.0.1:8000"

// Client is a client of one farm. Make it with New.
type Client struct {
	base      *url.URL
	key       string
	userAgent string
	http      *http.Client // for the farm: carries the key, follows no redirects
	plain     *http.Client // for presigned links: carries no credentials
	pause     func(attempt int) time.Duration
	notice    func(err error, pause time.Duration)
}

// Option changes how a Client works.
type Option func(*Client)

// WithKey sets the API key. Surrounding white space, such as the line end of a file, is removed. Without a key none is sent.
func WithKey(key string) Option { return func(c *Client) { c.key = strings.TrimSpace(key) } }

// WithUserAgent sets the User-Agent header.
func WithUserAgent(agent string) Option { return func(c *Client) { c.userAgent = agent } }

// WithRetryNotice calls notice before each pause that a request is retried after, with the reason and the length of the pause. While the farm
// does not answer to those who wait for a job, these pauses grow to two seconds.
func WithRetryNotice(notice func(err error, pause time.Duration)) Option {
	return func(c *Client) { c.notice = notice }
}

// WithHTTPClient uses a copy of h, with its transport, cookies and timeout. Redirects are not followed, so that a key is never
// sent to the target of a link. A Timeout in h also ends streams (Events, downloads).
func WithHTTPClient(h *http.Client) Option {
	return func(c *Client) {
		if h != nil {
			farm, plain := *h, *h
			plain.Jar = nil
			c.http, c.plain = &farm, &plain
		}
	}
}

// New makes a client of the farm at baseURL, such as "http://127.0.0.1:8000", with or without "/v1" at the end; empty means
// DefaultURL. It sends nothing.
func New(baseURL string, opts ...Option) (*Client, error) {
	if baseURL == "" {
		baseURL = DefaultURL
	}
	base, err := url.Parse(strings.TrimRight(strings.TrimSuffix(strings.TrimRight(strings.TrimSpace(baseURL), "/"), "/v1"), "/"))
	switch {
	case err != nil && strings.Contains(baseURL, "://"):
		return nil, fmt.Errorf("parse the address of the farm: %w", err)
	case err != nil:
		return nil, fmt.Errorf("parse the address of the farm: %q does not have the form http://host:port", baseURL)
	case base.Scheme != "http" && base.Scheme != "https", base.Host == "":
		return nil, fmt.Errorf("parse the address of the farm: %q does not have the form http://host:port", baseURL)
	case base.RawQuery != "" || base.Fragment != "" || base.User != nil:
		return nil, errors.New("parse the address of the farm: it must not contain a query, a fragment or a user")
	}
	transport := newTransport()
	c := &Client{
		base: base, userAgent: "sandfarm-go",
		http: &http.Client{Transport: transport}, plain: &http.Client{Transport: transport},
		pause: backoff, notice: func(error, time.Duration) {},
	}
	for _, opt := range opts {
		opt(c)
	}
	c.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return c, nil
}

// URL is the address of the farm, without a trailing slash.
func (c *Client) URL() string { return c.base.String() }

// newTransport bounds the steps of a connection. Requests have their own time limits.
func newTransport() http.RoundTripper {
	t, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		return http.DefaultTransport
	}
	t = t.Clone()
	t.MaxIdleConnsPerHost = 32
	return t
}

// CallOption changes one request that starts work.
type CallOption func(*call)

// WithWait makes the farm delay its answer until the job is final, for at most d, rounded up to whole seconds and limited to
// a minute. Without it the answer is the accepted job. See also [Client.Wait].
func WithWait(d time.Duration) CallOption {
	return func(in *call) { in.wait = int(min(math.Ceil(d.Seconds()), maxWaitSeconds)) }
}

// WithIdempotencyKey sends your own key (at most 255 visible ASCII characters). Another request with the same key and body,
// also from another process, returns the same job.
func WithIdempotencyKey(key string) CallOption { return func(in *call) { in.key = key } }

// WithKernel limits [Client.Interrupt] and [Client.Restart] to the kernel of one context.
func WithKernel(name string) CallOption {
	return func(in *call) { in.body = wire.ControlRequest{Context: name} }
}

// WithManager tells [Client.Package] which installer a package belongs to: "pip" or "npm".
func WithManager(name string) CallOption {
	return func(in *call) { in.query = url.Values{"manager": {name}} }
}

func (in call) with(opts []CallOption) call {
	for _, opt := range opts {
		opt(&in)
	}
	in.wait = max(in.wait, 0)
	return in
}

// Images lists the sandbox images of the farm.
func (c *Client) Images(ctx context.Context) ([]wire.Image, error) {
	return listWhole[wire.Image](ctx, c, "v1", "images")
}

// Workers lists the live workers.
func (c *Client) Workers(ctx context.Context) ([]wire.Worker, error) {
	return listWhole[wire.Worker](ctx, c, "v1", "workers")
}

// Queues lists the queues with their backlogs.
func (c *Client) Queues(ctx context.Context) ([]wire.Queue, error) {
	return listWhole[wire.Queue](ctx, c, "v1", "queues")
}

// Activity lists the minutes of the last hour, the oldest first, with what became of the jobs that workers ended. It needs the scope admin.
func (c *Client) Activity(ctx context.Context) ([]wire.Minute, error) {
	return listWhole[wire.Minute](ctx, c, "v1", "activity")
}

// FleetEvents lists what happened to workers and nodes, the newest first; the farm keeps 200. It needs the scope admin.
func (c *Client) FleetEvents(ctx context.Context) ([]wire.FleetEvent, error) {
	return listWhole[wire.FleetEvent](ctx, c, "v1", "events")
}

// Scale says how many nodes of each kind the farm needs for what waits, nodes without GPUs first. It needs the scope admin.
func (c *Client) Scale(ctx context.Context) ([]wire.NodeNeed, error) {
	return listWhole[wire.NodeNeed](ctx, c, "v1", "scale")
}

// Limits reads the limits of the farm on requests.
func (c *Client) Limits(ctx context.Context) (wire.Limits, error) {
	var got wire.Limits
	err := c.json(ctx, call{method: http.MethodGet, path: []string{"v1", "limits"}}, &got)
	return got, err
}

// Health is nil if the API is alive.
func (c *Client) Health(ctx context.Context) error {
	return c.json(ctx, call{method: http.MethodGet, path: []string{"healthz"}}, nil)
}

// Ready is nil if every component that jobs need works, and otherwise an *Error with the code unavailable.
func (c *Client) Ready(ctx context.Context) error {
	return c.json(ctx, call{method: http.MethodGet, path: []string{"readyz"}}, nil)
}

package client

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
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
}

// Option changes how a Client works.
type Option func(*Client)

// WithKey sets the API key. Surrounding white space, such as the line end of a file, is removed. Without a key none is sent.
func WithKey(key string) Option { return func(c *Client) { c.key = strings.TrimSpace(key) } }

// WithUserAgent sets the User-Agent header.
func WithUserAgent(agent string) Option { return func(c *Client) { c.userAgent = agent } }

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
		pause: backoff,
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

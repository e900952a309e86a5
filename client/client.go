package client

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// DefaultURL is where a farm that was started with its defaults answers.
const DefaultURL = "http://127.0.0.1:8000"

// Client speaks to one farm. Use New.
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

// WithKey sets the API key. An empty key sends none,
// and the space around it, such as the end of the line in a file, is left out.
func WithKey(key string) Option { return func(c *Client) { c.key = strings.TrimSpace(key) } }

// WithUserAgent sets the User-Agent header.
func WithUserAgent(agent string) Option { return func(c *Client) { c.userAgent = agent } }

// WithHTTPClient uses the transport, cookies and timeout of h, which is copied: redirects stay this package's own, so
// that a key is never sent to where a link leads. A Timeout in h also cuts streams (Events, downloads).
func WithHTTPClient(h *http.Client) Option {
	return func(c *Client) {
		if h != nil {
			farm, plain := *h, *h
			plain.Jar = nil
			c.http, c.plain = &farm, &plain
		}
	}
}

// New makes a client of the farm at baseURL, such as "http://127.0.0.1:8000", with "/v1" in the end or without; empty means
// DefaultURL. Nothing is sent yet.
func New(baseURL string, opts ...Option) (*Client, error) {
	if baseURL == "" {
		baseURL = DefaultURL
	}
	base, err := url.Parse(strings.TrimRight(strings.TrimSuffix(strings.TrimRight(strings.TrimSpace(baseURL), "/"), "/v1"), "/"))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the farm's address: %w", err)
	case base.Scheme != "http" && base.Scheme != "https", base.Host == "":
		return nil, fmt.Errorf("read the farm's address: %q is not like http://host:port", baseURL)
	case base.RawQuery != "" || base.Fragment != "" || base.User != nil:
		return nil, errors.New("read the farm's address: it must hold no query, fragment or user")
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

// URL is the farm's address, without a slash at its end.
func (c *Client) URL() string { return c.base.String() }

// newTransport bounds the steps of a connection; whole requests have bounds of their own.
func newTransport() http.RoundTripper {
	t, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		return http.DefaultTransport
	}
	t = t.Clone()
	t.MaxIdleConnsPerHost = 32
	return t
}

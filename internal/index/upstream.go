package index

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// errSilent is the cause if upstream does not respond at all.
var errSilent = errors.New("there was no response")

// redirectsMax is how many redirects are followed; indexes need one or two.
const redirectsMax = 5

// answerHeadMax bounds the headers of a response; those of the public indexes are under 4 KiB.
const answerHeadMax = 64 << 10

// upstream is a proxied registry.
type upstream struct {
	name    string // as in sentences: "The package index does not answer."
	root    *url.URL
	hosts   []*url.URL // where links and redirects may lead
	client  *http.Client
	timeout time.Duration
	count   *counters
}

func newUpstream(name, address string, cfg Config, count *counters) (*upstream, error) {
	root, err := base(address)
	if err != nil {
		return nil, err
	}
	beside, err := bases(cfg.FilesURL)
	if err != nil {
		return nil, err
	}
	u := &upstream{name: name, root: root, hosts: append(beside, root), timeout: cfg.Timeout, count: count}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxResponseHeaderBytes = answerHeadMax
	client := http.Client{Transport: transport}
	if cfg.Client != nil {
		client = *cfg.Client
	}
	client.CheckRedirect = u.redirect
	u.client = &client
	return u, nil
}

// redirect checks each redirect.
func (u *upstream) redirect(req *http.Request, via []*http.Request) error {
	if len(via) > redirectsMax {
		return farm.Errorf(farm.CodeUnavailable, "The %s redirects in a loop.", u.name)
	}
	return u.allowed(req.URL)
}

// allowed rejects addresses on hosts that are not configured.
func (u *upstream) allowed(target *url.URL) error {
	for _, h := range u.hosts {
		if target.Scheme == h.Scheme && strings.EqualFold(target.Host, h.Host) {
			return nil
		}
	}
	return farm.Errorf(farm.CodeUnavailable, "The %s leads to %s://%s, which is not one of the hosts that this farm fetches packages from.",
		u.name, target.Scheme, target.Host)
}

// get requests an address. The response has one of the statuses 200, 206, 304 and 416; others become errors. Its body fails if
// upstream sends nothing for too long. The caller closes it.
func (u *upstream) get(ctx context.Context, target *url.URL, header http.Header) (*http.Response, error) {
	if err := u.allowed(target); err != nil {
		return nil, err
	}
	if target.User == nil && strings.EqualFold(target.Host, u.root.Host) {
		withUser := *target
		withUser.User = u.root.User // an index with a password needs it for its files as well
		target = &withUser
	}
	ctx, watch := newStall(ctx, u.timeout)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		watch.end()
		return nil, farm.Wrap(err, farm.CodeUnavailable, "The %s lists an address that is not valid.", u.name)
	}
	req.Header = header.Clone()
	req.Header.Set("User-Agent", "sandfarm-index/1")
	u.count.upstreamRequests.Add(1)
	resp, err := u.client.Do(req)
	if err != nil {
		cause := context.Cause(ctx)
		watch.end()
		return nil, u.unreachable(err, cause)
	}
	watch.pause()
	resp.Body = &watched{ReadCloser: resp.Body, ctx: ctx, watch: watch, count: func(n int) { u.count.upstreamBytes.Add(int64(n)) }}
	switch resp.StatusCode {
	case http.StatusOK, http.StatusPartialContent, http.StatusNotModified, http.StatusRequestedRangeNotSatisfiable:
		return resp, nil
	}
	resp.Body.Close()
	return nil, u.refused(resp.StatusCode)
}

// unreachable is the error of a request without a response.
func (u *upstream) unreachable(err, cause error) error {
	if own, ok := errors.AsType[*farm.Error](err); ok { // a rejected redirect
		return own
	}
	if errors.Is(cause, errStalled) {
		return farm.Wrap(cause, farm.CodeUnavailable, "The %s did not answer within %s.", u.name, u.timeout)
	}
	if cause != nil {
		return cause
	}
	return farm.Wrap(errors.Join(errSilent, err), farm.CodeUnavailable, "The %s does not answer.", u.name)
}

// refused is the error of an unexpected status.
func (u *upstream) refused(status int) error {
	if status == http.StatusNotFound || status == http.StatusGone {
		return farm.NotFoundf("The %s has no such thing.", u.name)
	}
	return farm.Wrap(statusError(status), farm.CodeUnavailable, "The %s answers %d (%s).", u.name, status, http.StatusText(status))
}

// statusError is a status of upstream as an error.
type statusError int

// Error returns the status.
func (s statusError) Error() string { return fmt.Sprintf("status %d", int(s)) }

// broken is the error of an unusable response.
func (u *upstream) broken(err error, format string, args ...any) error {
	return farm.Wrap(err, farm.CodeUnavailable, "The %s gave %s.", u.name, fmt.Sprintf(format, args...))
}

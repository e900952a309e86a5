package index

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err // without the address, whose user may be a token
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

// Fetch opens a file that the Python index lists, through the cache. sha256 pins it, in hexadecimal; "" accepts the hash that the
// index lists. The caller closes the reader, which lives as long as ctx; if it ends with io.EOF, the file was complete and
// verified. CodeNotFound if the index does not list it, CodeConflict if it lists another hash, CodeUnavailable if
// upstream does not respond.
func (x *Index) Fetch(ctx context.Context, project, filename, sha256 string) (io.ReadCloser, int64, error) {
	if !goodProject.MatchString(project) || !goodName(filename) {
		return nil, 0, farm.Invalidf("%q and %q are not names of a project and its file.", project, filename)
	}
	want, err := x.pypiFile(ctx, farm.NormalPackage(farm.ManagerPip, project), filename)
	if err != nil {
		return nil, 0, err
	}
	if sha256 != "" && (want.algorithm != "sha256" || !strings.EqualFold(want.hash, sha256)) {
		return nil, 0, farm.Conflictf("The %s lists %s with %s %s, not with sha256 %s.", x.pypi.name, filename, want.algorithm, want.hash, sha256)
	}
	c, err := x.open(ctx, want)
	if err != nil {
		return nil, 0, err
	}
	return c, c.size, nil
}

// errStalled is the cause of a request that ends because no byte arrived for too long.
var errStalled = errors.New("no byte arrived for too long")

// stall cancels a context if nothing happens for a while.
type stall struct {
	timer  *time.Timer
	every  time.Duration
	cancel context.CancelCauseFunc
}

// newStall returns a context that ends with errStalled unless moved is called at least once in every interval.
func newStall(ctx context.Context, every time.Duration) (context.Context, *stall) {
	ctx, cancel := context.WithCancelCause(ctx)
	return ctx, &stall{timer: time.AfterFunc(every, func() { cancel(errStalled) }), every: every, cancel: cancel}
}

func (s *stall) moved() { s.timer.Reset(s.every) }

// pause stops the timer while our own side is slow.
func (s *stall) pause() { s.timer.Stop() }

func (s *stall) end() {
	s.timer.Stop()
	s.cancel(context.Canceled)
}

// watched is a body whose reads have a stall timeout. Closing it ends its request.
type watched struct {
	io.ReadCloser
	ctx   context.Context // a reader has no other way to learn why it ended
	watch *stall
	count func(n int)
}

// Read reads; if the request was ended, the error is the cause.
func (w *watched) Read(p []byte) (int, error) {
	w.watch.moved()
	n, err := w.ReadCloser.Read(p)
	w.watch.pause()
	w.count(n)
	if err != nil && !errors.Is(err, io.EOF) {
		if cause := context.Cause(w.ctx); cause != nil {
			err = cause
		}
	}
	return n, err
}

// Close ends the request.
func (w *watched) Close() error {
	w.watch.end()
	return w.ReadCloser.Close()
}

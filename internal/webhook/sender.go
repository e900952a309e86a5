package webhook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/sandfarm/sandfarm/internal/egressproxy"
	"github.com/sandfarm/sandfarm/internal/tracing"
)

// deliverTimeout bounds one delivery; receivers should answer first and work later. Standard Webhooks names 15 to 30 s.
const deliverTimeout = 20 * time.Second

// Sender posts messages. It never follows redirects and ignores proxies of the environment: the address that was checked
// is the address that is dialled.
type Sender struct {
	client *http.Client
}

// NewSender makes a sender under a policy.
func NewSender(policy Policy) *Sender {
	dialer := &net.Dialer{Timeout: 5 * time.Second}
	if !policy.AllowPrivate {
		dialer.ControlContext = egressproxy.ControlDial(egressproxy.Public)
	}
	return &Sender{client: &http.Client{
		Timeout:       deliverTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialContext: dialer.DialContext, TLSHandshakeTimeout: 5 * time.Second, MaxIdleConns: 32, IdleConnTimeout: 30 * time.Second,
			MaxResponseHeaderBytes: 16 << 10,
		},
	}}
}

// Failure is why a message was not delivered. Its text has nothing of the address but the host: path and query may hold secrets.
type Failure struct {
	Host   string // and port
	Gone   bool   // the receiver wants no more messages (410) or must not be reached (a private address): do not retry
	Reason error
}

// Error returns the reason.
func (f *Failure) Error() string { return "send callback: " + f.Reason.Error() }

// Unwrap returns the reason.
func (f *Failure) Unwrap() error { return f.Reason }

// Post delivers one message. It succeeds if the receiver answers 2xx; an error is a *Failure.
func (s *Sender) Post(ctx context.Context, to, id string, secret, body []byte, at time.Time) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(body))
	if err != nil {
		return &Failure{Gone: true, Reason: withoutAddress(err)}
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "Sandfarm-Callback/1")
	req.Header.Set("Webhook-Id", id)
	req.Header.Set("Webhook-Timestamp", strconv.FormatInt(at.Unix(), 10))
	req.Header.Set("Webhook-Signature", Sign(secret, id, at, body))
	if parent := tracing.Parent(ctx); parent != "" {
		req.Header.Set("Traceparent", parent)
	}
	answer, err := s.client.Do(req)
	if err != nil {
		return &Failure{Host: req.URL.Host, Gone: errors.Is(err, egressproxy.ErrNotPublic), Reason: withoutAddress(err)}
	}
	defer func() { _ = answer.Body.Close() }()
	_, _ = io.CopyN(io.Discard, answer.Body, 64<<10)
	if answer.StatusCode >= 200 && answer.StatusCode < 300 {
		return nil
	}
	return &Failure{Host: req.URL.Host, Gone: answer.StatusCode == http.StatusGone, Reason: fmt.Errorf("the receiver answered %d", answer.StatusCode)}
}

// withoutAddress is an error of net/http without the address that it names.
func withoutAddress(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}

package webhook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/sandfarm/sandfarm/internal/address"
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
		dialer.ControlContext = address.Control(address.Public)
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

// Post delivers one message. It succeeds if the receiver answers 2xx. gone is true if the receiver wants no more messages
// (410) or must not be reached (a private address): do not retry.
func (s *Sender) Post(ctx context.Context, url, id string, secret, body []byte, at time.Time) (gone bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return true, fmt.Errorf("make callback: %w", err)
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
		return errors.Is(err, address.ErrNotPublic), fmt.Errorf("send callback: %w", err)
	}
	defer func() { _ = answer.Body.Close() }()
	_, _ = io.CopyN(io.Discard, answer.Body, 64<<10)
	switch {
	case answer.StatusCode >= 200 && answer.StatusCode < 300:
		return false, nil
	case answer.StatusCode == http.StatusGone:
		return true, errors.New("send callback: the receiver answered 410 Gone")
	default:
		return false, fmt.Errorf("send callback: the receiver answered %d", answer.StatusCode)
	}
}

// Package webhook notifies callers that a job has finished: a signed POST by the Standard Webhooks scheme
// (https://www.standardwebhooks.com, version 1.0.0), to public addresses only unless the operator allows others.
package webhook

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/internal/egressproxy"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/httpserver"
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
	return &Sender{client: &http.Client{
		Timeout:       deliverTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: httpserver.BoundAnswers(&http.Transport{
			DialContext: policy.dial, TLSHandshakeTimeout: 5 * time.Second, MaxIdleConns: 32, IdleConnTimeout: 30 * time.Second,
			MaxResponseHeaderBytes: 16 << 10, DisableCompression: true,
		}),
	}}
}

// dial connects to a receiver.
func (p Policy) dial(ctx context.Context, network, address string) (net.Conn, error) {
	allowed := egressproxy.Public
	if p.AllowPrivate {
		allowed = func(...netip.Addr) bool { return true }
	}
	dialer := &net.Dialer{Timeout: 5 * time.Second, Resolver: egressproxy.SystemResolver(), ControlContext: egressproxy.ControlDial(allowed)}
	return dialer.DialContext(ctx, network, address)
}

// Failure is why a message was not delivered. Its text has nothing of the address but the host: path and query may hold secrets.
type Failure struct {
	Host   string // and port
	Gone   bool   // the receiver wants no more messages (410) or must not be reached (a private address): do not retry
	Reason error
}

// maxReasonBytes is how much of a reason its text has: the receiver chooses some of it, such as the names in its certificate.
const maxReasonBytes = 500

// Error returns the reason, shortened.
func (f *Failure) Error() string {
	return "send callback: " + farm.ShortenTo(f.Reason.Error(), maxReasonBytes)
}

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
	_, _ = io.CopyN(io.Discard, answer.Body, 64<<10) // as they come: unpacked, an endless answer may have no byte
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

// SecretPrefix is the prefix of a formatted secret, before its base64.
const SecretPrefix = "whsec_"

// TenantSecret derives a tenant's signing key from the farm's key, so that one stored secret is enough for all tenants and
// no tenant can sign for another.
func TenantSecret(farmSecret []byte, tenant string) []byte {
	mac := hmac.New(sha256.New, farmSecret)
	_, _ = mac.Write([]byte("sandfarm callback key of tenant " + tenant))
	return mac.Sum(nil)
}

// FormatSecret formats a secret as receivers' libraries expect it.
func FormatSecret(secret []byte) string {
	return SecretPrefix + base64.StdEncoding.EncodeToString(secret)
}

// Sign returns the webhook-signature of a message: "v1," and the base64 of HMAC-SHA256 over "id.timestamp.body".
func Sign(secret []byte, id string, at time.Time, body []byte) string {
	mac := hmac.New(sha256.New, secret)
	_, _ = fmt.Fprintf(mac, "%s.%s.", id, strconv.FormatInt(at.Unix(), 10))
	_, _ = mac.Write(body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// MaxURLBytes bounds a callback URL.
const MaxURLBytes = 2000

// lookupTimeout bounds the lookup of a host: a caller waits for it.
const lookupTimeout = 3 * time.Second

// Policy says where callbacks may go. The zero value allows public addresses only.
type Policy struct {
	AllowPrivate bool
	NoLookup     bool                 // Check looks up no name
	Resolver     egressproxy.Resolver // nil: the system's
}

// Check checks a callback URL when it is submitted: scheme, host, and every current address of the name. The address is
// checked again when it is dialled, because names can change. The error for a refused URL is CodeInvalid.
func (p Policy) Check(ctx context.Context, raw string) error {
	if len(raw) > MaxURLBytes {
		return farm.Invalidf("callback_url has %d bytes; at most %d are allowed", len(raw), MaxURLBytes)
	}
	u, err := url.Parse(raw)
	if err != nil || u.Hostname() == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return farm.Invalidf("callback_url must be a complete http or https address")
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return farm.Invalidf("callback_url has the port %s; ports are from 1 to 65535", farm.Shorten(port))
		}
	}
	if u.User != nil {
		return farm.Invalidf("callback_url holds a user name: remove it; callbacks are authenticated by their signature")
	}
	if p.AllowPrivate {
		return nil
	}
	host := strings.TrimSuffix(u.Hostname(), ".")
	if _, err := netip.ParseAddr(host); err != nil && p.NoLookup {
		return nil
	}
	ips, err := p.addresses(ctx, host)
	if err != nil || len(ips) == 0 || !egressproxy.Public(ips...) {
		// One sentence for all: callers must not learn which names there are in the internal network.
		return farm.Invalidf("callback_url: the host %q has no address, or a private one, and this farm sends callbacks to public addresses only; its operator allows others with api.allow_private_callbacks (SANDFARM_API_ALLOW_PRIVATE_CALLBACKS=true)", host)
	}
	return nil
}

// addresses resolves a host as it is: no search domain is tried.
func (p Policy) addresses(ctx context.Context, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a}, nil
	}
	ctx, done := context.WithTimeout(ctx, lookupTimeout)
	defer done()
	return egressproxy.Resolve(ctx, p.Resolver, host)
}

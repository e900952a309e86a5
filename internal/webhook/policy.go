package webhook

import (
	"context"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/internal/egressproxy"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// MaxURLBytes bounds a callback URL.
const MaxURLBytes = 2000

// lookupTimeout bounds the lookup of a host: a caller waits for it.
const lookupTimeout = 3 * time.Second

// Policy says where callbacks may go. The zero value allows public addresses only.
type Policy struct {
	AllowPrivate bool
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
	if u.User != nil {
		return farm.Invalidf("callback_url holds a user name: remove it; callbacks are authenticated by their signature")
	}
	if p.AllowPrivate {
		return nil
	}
	host := strings.TrimSuffix(u.Hostname(), ".")
	ips, err := p.addresses(ctx, host)
	if err != nil || len(ips) == 0 || slices.ContainsFunc(ips, func(ip netip.Addr) bool { return !egressproxy.Public(ip) }) {
		// One sentence for all: callers must not learn which names there are in the internal network.
		return farm.Invalidf("callback_url: the host %q has no address, or a private one, and this farm sends callbacks to public addresses only; its operator allows others with api.allow_private_callbacks (SANDFARM_API_ALLOW_PRIVATE_CALLBACKS=true)", host)
	}
	return nil
}

// addresses resolves a host as it is: with the dot at its end no search domain is tried.
func (p Policy) addresses(ctx context.Context, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a}, nil
	}
	ctx, done := context.WithTimeout(ctx, lookupTimeout)
	defer done()
	if p.Resolver == nil {
		return net.DefaultResolver.LookupNetIP(ctx, "ip", host+".")
	}
	return p.Resolver.LookupNetIP(ctx, "ip", host+".")
}

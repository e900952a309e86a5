package service

import (
	"context"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// lookupTimeout ends a look-up of a callback's host: a caller waits for it.
const lookupTimeout = 3 * time.Second

// maxCallback is the longest callback address.
const maxCallback = 2000

// checkCallback refuses an address that is no http(s) address or that leads to a private network. The sender looks
// again when it connects, since names can change their address.
func (s *Service) checkCallback(ctx context.Context, raw string) error {
	if raw == "" {
		return nil
	}
	u, err := url.Parse(raw)
	switch {
	case len(raw) > maxCallback:
		return farm.Invalidf("callback_url has %d bytes; at most %d are allowed", len(raw), maxCallback)
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return farm.Invalidf("callback_url must be a whole http or https address")
	case u.User != nil:
		return farm.Invalidf("callback_url holds a user name: callbacks are signed, not logged in")
	case s.options.AllowPrivateCallbacks:
		return nil
	}
	host := strings.TrimSuffix(u.Hostname(), ".")
	addresses, err := s.addresses(ctx, host)
	if err != nil || len(addresses) == 0 {
		return farm.Invalidf("callback_url: the host %q has no address", short(host))
	}
	for _, a := range addresses {
		if !public(a) {
			return farm.Invalidf("callback_url leads to a private address, which this farm does not allow")
		}
	}
	return nil
}

func (s *Service) addresses(ctx context.Context, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	return s.Resolver.LookupNetIP(ctx, "ip", host) //nolint:wrapcheck // only whether it failed counts
}

// public reports whether an address is one of the Internet at large.
func public(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	if !a.IsGlobalUnicast() || a.IsPrivate() {
		return false // also loopback, link-local (metadata services), multicast, unspecified
	}
	for _, p := range special() {
		if p.Contains(a) {
			return false
		}
	}
	return true
}

// special lists the ranges of the IANA registries that are not public and that net/netip does not know, and those that
// embed an IPv4 address.
func special() []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix("0.0.0.0/8"),
		netip.MustParsePrefix("100.64.0.0/10"), // carrier-grade NAT; holds the metadata service of one cloud
		netip.MustParsePrefix("192.0.0.0/24"),
		netip.MustParsePrefix("192.0.2.0/24"),
		netip.MustParsePrefix("192.88.99.0/24"),
		netip.MustParsePrefix("198.18.0.0/15"),
		netip.MustParsePrefix("198.51.100.0/24"),
		netip.MustParsePrefix("203.0.113.0/24"),
		netip.MustParsePrefix("240.0.0.0/4"),
		netip.MustParsePrefix("64:ff9b::/96"),
		netip.MustParsePrefix("64:ff9b:1::/48"),
		netip.MustParsePrefix("100::/64"),
		netip.MustParsePrefix("2001::/23"),
		netip.MustParsePrefix("2001:db8::/32"),
		netip.MustParsePrefix("2002::/16"),
		netip.MustParsePrefix("fec0::/10"),
		netip.MustParsePrefix("::/96"),
	}
}

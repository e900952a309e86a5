package webhook

import (
	"context"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// MaxURLBytes bounds a callback URL.
const MaxURLBytes = 2000

// refused lists the ranges of the IANA registries that are not on the public Internet and that netip does not classify,
// and those that embed an IPv4 address and could hide one of these.
var refused = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),
	netip.MustParsePrefix("100.64.0.0/10"), // carrier-grade NAT; contains the metadata service of one cloud
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

// Public reports whether an address is on the public Internet.
func Public(ip netip.Addr) bool {
	ip = ip.Unmap().WithZone("") // a prefix contains no address with a zone
	if !ip.IsValid() || !ip.IsGlobalUnicast() || ip.IsPrivate() || ip.IsLoopback() || ip.IsLinkLocalUnicast() {
		return false
	}
	for _, p := range refused {
		if p.Contains(ip) {
			return false
		}
	}
	return true
}

// Resolver finds the addresses of a host; *net.Resolver implements it.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// lookupTimeout bounds the lookup of a host: a caller waits for it.
const lookupTimeout = 3 * time.Second

// Policy says where callbacks may go. The zero value allows public addresses only.
type Policy struct {
	AllowPrivate bool
	Resolver     Resolver // nil: the system's
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
	if err != nil || len(ips) == 0 {
		return farm.Invalidf("callback_url: the host %q has no address", host)
	}
	for _, ip := range ips {
		if !Public(ip) { // the address is not named: callers must not learn about the internal network
			return farm.Invalidf("callback_url leads to a private address, which this farm does not allow")
		}
	}
	return nil
}

func (p Policy) addresses(ctx context.Context, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a}, nil
	}
	ctx, done := context.WithTimeout(ctx, lookupTimeout)
	defer done()
	if p.Resolver == nil {
		return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	}
	return p.Resolver.LookupNetIP(ctx, "ip", host)
}

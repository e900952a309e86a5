package webhook

import (
	"context"
	"net"
	"net/netip"
	"net/url"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// MaxURLBytes bounds a callback URL.
const MaxURLBytes = 2048

// refused are the ranges that are not the public Internet and that netip does not name: shared address space (RFC 6598),
// "this network", IETF assignments, documentation, benchmarking, reserved; NAT64 and 6to4, which can hide the others.
var refused = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("198.51.100.0/24"),
	netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("240.0.0.0/4"), netip.MustParsePrefix("64:ff9b::/96"),
	netip.MustParsePrefix("64:ff9b:1::/48"), netip.MustParsePrefix("2002::/16"), netip.MustParsePrefix("2001:db8::/32"),
}

// Public reports whether an address is on the public Internet.
func Public(ip netip.Addr) bool {
	ip = ip.Unmap()
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

// Policy says where callbacks may go. The zero value allows public addresses only.
type Policy struct {
	AllowPrivate bool
	Resolver     interface { // nil: the system's
		LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
	}
}

// Check looks at a callback URL when it is submitted: scheme, host, and every address that the name has now. The address
// is checked again when it is dialled, since a name can change. Refused URLs give CodeInvalid.
func (p Policy) Check(ctx context.Context, raw string) error {
	if len(raw) > MaxURLBytes {
		return farm.Invalidf("callback_url has %d bytes; at most %d are allowed", len(raw), MaxURLBytes)
	}
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return farm.Invalidf("callback_url is not an http or https URL")
	}
	if u.User != nil {
		return farm.Invalidf("callback_url must not hold a user or password")
	}
	if p.AllowPrivate {
		return nil
	}
	if ip, err := netip.ParseAddr(u.Hostname()); err == nil {
		if !Public(ip) {
			return farm.Invalidf("callback_url leads to %s, which is not a public address", ip)
		}
		return nil
	}
	var resolver interface {
		LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
	} = net.DefaultResolver
	if p.Resolver != nil {
		resolver = p.Resolver
	}
	ips, err := resolver.LookupNetIP(ctx, "ip", u.Hostname())
	if err != nil || len(ips) == 0 {
		return farm.Invalidf("callback_url names a host that cannot be found: %s", u.Hostname())
	}
	for _, ip := range ips {
		if !Public(ip) {
			return farm.Invalidf("callback_url leads to %s, which is not a public address", ip.Unmap())
		}
	}
	return nil
}

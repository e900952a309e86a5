package egressproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// ErrNotPublic means that a connection was about to go to an address that is not public.
var ErrNotPublic = errors.New("the address is not public")

// public6 is the only block of IPv6 from which public addresses are assigned. It contains neither mapped, compatible, unique local, link-local
// nor site-local addresses, and not the prefixes of NAT64 (64:ff9b::/96, 64:ff9b:1::/48).
var public6 = netip.MustParsePrefix("2000::/3")

// refused lists the ranges of the IANA registries that are not on the public Internet and that netip does not classify,
// and those that embed an IPv4 address and could hide one of these.
var refused = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),
	netip.MustParsePrefix("100.64.0.0/10"),    // carrier-grade NAT; contains the metadata service of one cloud
	netip.MustParsePrefix("161.26.0.0/16"),    // services of one cloud, reachable from its machines only,
	netip.MustParsePrefix("166.8.0.0/14"),     // and more of them
	netip.MustParsePrefix("168.63.129.16/32"), // the platform service of one cloud, reachable from its machines only
	netip.MustParsePrefix("192.0.0.0/24"),     // contains the metadata service of another cloud
	netip.MustParsePrefix("192.0.2.0/24"),
	netip.MustParsePrefix("192.88.99.0/24"),
	netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("198.51.100.0/24"),
	netip.MustParsePrefix("203.0.113.0/24"),
	netip.MustParsePrefix("240.0.0.0/4"),
	netip.MustParsePrefix("2001::/23"), // contains Teredo
	netip.MustParsePrefix("2001:db8::/32"),
	netip.MustParsePrefix("2002::/16"), // 6to4
	netip.MustParsePrefix("3fff::/20"),
}

// Public reports whether all of these addresses are on the public Internet and none is of this machine: what is meant for others only.
func Public(all ...netip.Addr) bool {
	own, err := net.InterfaceAddrs()
	return err == nil && !slices.ContainsFunc(all, func(ip netip.Addr) bool { return !publicBeside(own, ip) })
}

// publicBeside is Public on a machine with these addresses.
func publicBeside(own []net.Addr, ip netip.Addr) bool { return onInternet(ip) && !among(own, ip) }

// OfThisMachine reports whether one of these addresses belongs to this machine. Servers that listen on all addresses are not meant for sandboxes, and
// a firewall in front of the machine does not see such a connection. It returns true if the machine's addresses cannot be read.
func OfThisMachine(some ...netip.Addr) bool {
	own, err := net.InterfaceAddrs()
	return err != nil || slices.ContainsFunc(some, func(ip netip.Addr) bool {
		return ip.Unmap().IsLoopback() || ip.Unmap().IsUnspecified() || among(own, ip)
	})
}

// among reports whether an address is one of a machine's own.
func among(own []net.Addr, ip netip.Addr) bool {
	for _, a := range own {
		if prefix, ok := a.(*net.IPNet); ok {
			if mine, ok := netip.AddrFromSlice(prefix.IP); ok && mine.Unmap() == ip.Unmap().WithZone("") {
				return true
			}
		}
	}
	return false
}

// onInternet reports whether an address is on the public Internet.
func onInternet(ip netip.Addr) bool {
	ip = ip.Unmap().WithZone("") // a prefix contains no address with a zone
	if !ip.IsValid() || !ip.IsGlobalUnicast() || ip.IsPrivate() || (ip.Is6() && !public6.Contains(ip)) {
		return false
	}
	for _, p := range refused {
		if p.Contains(ip) {
			return false
		}
	}
	return true
}

// ControlDial returns a net.Dialer.ControlContext for one connection. It refuses every address for which allowed is false, with ErrNotPublic. The dialer
// calls it with the address that it is about to connect to, so no name can change between the check and the connection. Of a name with many addresses
// eight are tried.
func ControlDial(allowed func(...netip.Addr) bool) func(ctx context.Context, network, address string, conn syscall.RawConn) error {
	var tried atomic.Int64
	return func(_ context.Context, _, address string, _ syscall.RawConn) error {
		if tried.Add(1) > maxAddresses {
			return errAddresses
		}
		to, err := netip.ParseAddrPort(address)
		if err != nil || !allowed(to.Addr()) {
			return fmt.Errorf("connect to %s: %w", address, ErrNotPublic)
		}
		return nil
	}
}

// Resolver finds the addresses of a host; *net.Resolver implements it.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Resolve finds the addresses of a host whose name a caller or user code chose, without search domains. A host with more than 64 has none: its owner chooses
// how many, and each is worked on. nil is SystemResolver.
func Resolve(ctx context.Context, r Resolver, host string) ([]netip.Addr, error) {
	if r == nil {
		r = SystemResolver()
	}
	all, err := r.LookupNetIP(ctx, "ip", host+".")
	if len(all) > maxResolved {
		return nil, errAddresses
	}
	return all, err
}

// SystemResolver is the system's resolver with bounded answers: it makes a socket for each address of a name, to sort them.
func SystemResolver() *net.Resolver { return &net.Resolver{PreferGo: true, Dial: dialNameServer} }

// dialNameServer connects to a name server. By UDP an answer has at most 1232 bytes.
func dialNameServer(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil || !strings.HasPrefix(network, "tcp") {
		return conn, err
	}
	return &nameServerConn{conn, io.LimitReader(conn, maxAnswerBytes)}, nil
}

// nameServerConn is a connection for one answer. A longer one ends early.
type nameServerConn struct {
	net.Conn
	answer io.Reader
}

// Read reads from the answer.
func (c *nameServerConn) Read(b []byte) (int, error) { return c.answer.Read(b) }

const (
	// maxResolved is how many addresses a name may have.
	maxResolved = 64
	// maxAnswerBytes is how long an answer of a name server by TCP may be, with its length before it. That with 64 addresses of IPv6 has some 1.8 KiB.
	maxAnswerBytes = 2 << 10
	// maxAddresses is how many addresses of a name are tried.
	maxAddresses = 8
	// connectTimeout bounds the attempt at one address.
	connectTimeout = 5 * time.Second
)

// errName means that a name has no address, or that it could not be resolved.
var errName = errors.New("the name could not be resolved")

// errAddresses means that a name has more addresses than are looked at.
var errAddresses = errors.New("the name has too many addresses")

// dial resolves the host of the link once and connects to one of its addresses. If one of them is not public the name is refused: a mix
// of both is an attempt to reach an internal host.
func (l *link) dial(ctx context.Context) (*hostConn, error) {
	p := l.proxy
	ctx, cancel := context.WithTimeout(ctx, p.limits.Dial)
	defer cancel()
	l.onAbort(cancel)
	addresses, err := Resolve(ctx, p.resolver, l.target.host)
	if err != nil {
		return nil, errors.Join(errName, err)
	}
	if len(addresses) == 0 {
		return nil, errName
	}
	if !p.public(addresses...) {
		return nil, ErrNotPublic
	}
	dialer := net.Dialer{Timeout: connectTimeout, ControlContext: ControlDial(p.public)}
	for _, ip := range addresses[:min(len(addresses), maxAddresses)] {
		var conn net.Conn
		conn, err = dialer.DialContext(ctx, "tcp", netip.AddrPortFrom(ip.Unmap(), uint16(l.target.port)).String()) //nolint:gosec // a port
		if err == nil {
			return l.attach(conn), nil
		}
	}
	return nil, err
}

// verdictOf explains why dial failed.
func verdictOf(err error) (Verdict, string) {
	switch {
	case errors.Is(err, ErrNotPublic):
		return Denied, ReasonAddress
	case errors.Is(err, errName):
		return Failed, ReasonName
	case errors.Is(err, context.Canceled):
		return Failed, ReasonNotStarted
	default:
		return Failed, ReasonConnect
	}
}

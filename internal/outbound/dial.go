package outbound

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/sandfarm/sandfarm/internal/address"
)

const (
	// maxAddresses is how many addresses of a name are tried.
	maxAddresses = 8
	// connectTimeout bounds the attempt at one address.
	connectTimeout = 5 * time.Second
)

// errName means that a name has no address, or that it could not be resolved.
var errName = errors.New("the name could not be resolved")

// dial resolves the host of the link once and connects to one of its addresses. If one of them is not public the name is refused: a mix
// of both is an attempt to reach an internal host.
func (l *link) dial(ctx context.Context) (*hostConn, error) {
	p := l.proxy
	ctx, cancel := context.WithTimeout(ctx, p.limits.Dial)
	defer cancel()
	l.onAbort(cancel)
	addresses, err := p.resolver.LookupNetIP(ctx, "ip", l.target.host+".") // the dot: the worker's search domains do not apply
	if err != nil {
		return nil, errors.Join(errName, err)
	}
	if len(addresses) == 0 {
		return nil, errName
	}
	for _, ip := range addresses {
		if !p.public(ip) {
			return nil, address.ErrNotPublic
		}
	}
	dialer := net.Dialer{Timeout: connectTimeout, ControlContext: address.Control(p.public)}
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
	case errors.Is(err, address.ErrNotPublic):
		return Denied, ReasonAddress
	case errors.Is(err, errName):
		return Failed, ReasonName
	case errors.Is(err, context.Canceled):
		return Failed, ReasonNotStarted
	default:
		return Failed, ReasonConnect
	}
}

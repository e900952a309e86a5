package relay

import (
	"fmt"
	"net"
	"path"
	"strconv"
	"strings"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// host is the name of a worker in its certificate and in URLs.
func host(worker string) string { return strings.ReplaceAll(worker, "_", "-") + ".sandfarm" }

// Target is the sandbox that a request is for.
type Target struct {
	Ref        farm.Ref
	Generation int
}

// path is where a worker has a path of the sandbox's agent.
func (t Target) path(rest string) string {
	return "/" + t.Ref.Tenant + "/" + t.Ref.ID + "/" + strconv.Itoa(t.Generation) + rest
}

// ParsePath reads the path of a request to a worker: the sandbox, and the path of its agent. It fails if that is not below agent.LivePrefix.
func ParsePath(whole string) (t Target, rest string, err error) {
	parts := strings.SplitN(whole, "/", 5)
	if len(parts) != 5 || parts[0] != "" {
		return t, "", fmt.Errorf("%q is not a path of the live path", farm.Shorten(whole))
	}
	t.Ref = farm.Ref{Tenant: parts[1], ID: parts[2]}
	t.Generation, err = strconv.Atoi(parts[3])
	rest = "/" + parts[4]
	if err != nil || !farm.ValidTenant(t.Ref.Tenant) || !farm.ValidID(farm.SandboxPrefix, t.Ref.ID) {
		return t, "", fmt.Errorf("%q does not name a sandbox", farm.Shorten(whole))
	}
	if !strings.HasPrefix(rest, agent.LivePrefix) || path.Clean(rest) != rest {
		return t, "", fmt.Errorf("%q is not a path of an agent's live part", farm.Shorten(rest))
	}
	return t, rest, nil
}

// ListenAuto as host of a listen address means the address by which this machine reaches Redis.
const ListenAuto = "auto"

// ListenNone is the listen address of a worker without a listener.
const ListenNone = "none"

// CheckListen reports what cannot be a listen address.
func CheckListen(listen string) error {
	if listen == ListenNone || listen == ListenAuto {
		return nil
	}
	name, port, err := net.SplitHostPort(listen)
	if err != nil {
		return fmt.Errorf("%q is not host:port, auto, auto:port or none", listen)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n > 65535 {
		return fmt.Errorf("%q has no valid port", listen)
	}
	if name == "" || net.ParseIP(name) != nil && net.ParseIP(name).IsUnspecified() {
		return fmt.Errorf("%q names no address that others could use: name one address, or auto:%s, the one by which this machine reaches Redis", listen, port)
	}
	return nil
}

// ListenAddress is the address to listen on. redis is the network and address of Redis; "tcp" and host:port, or a socket.
func ListenAddress(listen, network, redis string) (string, error) {
	port := "0"
	if listen != ListenAuto {
		name, p, err := net.SplitHostPort(listen)
		if err != nil || name != ListenAuto {
			return listen, nil // CheckListen has judged it
		}
		port = p
	}
	if network == "unix" {
		return net.JoinHostPort("127.0.0.1", port), nil
	}
	conn, err := net.Dial("udp", redis) //nolint:noctx // it sends nothing: the kernel only picks the route
	if err != nil {
		return "", fmt.Errorf("find the address by which this machine reaches Redis: %w", err)
	}
	defer func() { _ = conn.Close() }()
	name, _, err := net.SplitHostPort(conn.LocalAddr().String())
	if err != nil {
		return "", fmt.Errorf("find the address by which this machine reaches Redis: %w", err)
	}
	return net.JoinHostPort(name, port), nil
}

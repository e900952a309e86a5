// Package guard decides under which host names a server answers and which web pages may call it. It needs nothing but net/http, since the client
// has it, too.
package guard

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// Guard decides under which host names a server answers and which web pages may call it. REST and MCP share it, so one rule holds for every
// address. It protects servers without API keys from DNS rebinding (a page points its own name at this machine) and all servers from pages of
// foreign origins. The zero value trusts loopback names in the Host header, and no page but the server's own.
type Guard struct {
	Hosts   []string // names in the Host header, without a port, in addition to loopback
	Origins []string // origins of web pages, such as https://chat.example.com
}

// Host reports whether a request may name this host, with or without a port, in its Host header.
func (g Guard) Host(host string) bool {
	name := hostname(host)
	return Loopback(name) || slices.ContainsFunc(g.Hosts, func(trusted string) bool { return strings.EqualFold(trusted, name) })
}

// Origin reports whether a request comes from a page that may call: one that this server delivered itself, under a host that it
// answers to, or one of Origins. Another port of this machine is another program, whose pages may show what strangers wrote. A request
// without an Origin header is not from a page, unless the browser says that it comes from another origin ("same-site" is any port).
func (g Guard) Origin(r *http.Request) bool {
	values := r.Header.Values("Origin")
	if len(values) == 0 {
		return slices.Contains([]string{"", "none", "same-origin"}, r.Header.Get("Sec-Fetch-Site"))
	}
	return !slices.ContainsFunc(values, func(origin string) bool { return !g.origin(origin, r.Host) })
}

func (g Guard) origin(origin, host string) bool {
	u, err := url.Parse(origin)
	if err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.User == nil && strings.EqualFold(u.Host, host) && g.Host(host) {
		return true
	}
	return slices.ContainsFunc(g.Origins, func(trusted string) bool { return strings.EqualFold(strings.TrimRight(trusted, "/"), origin) })
}

// Loopback reports whether a host name or address, without a port, can only be this machine. Names below .localhost count:
// RFC 6761 reserves them.
func Loopback(host string) bool {
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	address, err := netip.ParseAddr(host)
	return err == nil && address.Unmap().IsLoopback()
}

// OverLoopback reports whether the connection of a request ends at a loopback address of this machine.
func OverLoopback(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return ok && Loopback(hostname(local.String()))
}

func hostname(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return address
}

// Scheme is how a caller reached the farm: https if a proxy in front of it says so.
func Scheme(r *http.Request) string {
	if r.TLS != nil || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https") {
		return "https"
	}
	return "http"
}

package egressproxy

import (
	"net"
	"net/netip"
	"testing"
)

// A machine's own public address leads to what is meant for others only, such as servers that a firewall in front of it protects.
func TestAddressesOfThisMachineAreNotPublic(t *testing.T) {
	t.Parallel()
	own := []net.Addr{
		&net.IPNet{IP: net.ParseIP("1.1.1.1"), Mask: net.CIDRMask(24, 32)},
		&net.IPNet{IP: net.ParseIP("2606:4700::1"), Mask: net.CIDRMask(64, 128)},
	}
	for text, want := range map[string]bool{"1.1.1.1": false, "::ffff:1.1.1.1": false, "2606:4700::1": false, "2606:4700::1%eth0": false, "1.1.1.2": true, "2606:4700::2": true, "10.0.0.1": false} {
		if got := publicBeside(own, netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
	actual, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range actual {
		if ip, err := netip.ParsePrefix(a.String()); err == nil && (Public(ip.Addr()) || !OfThisMachine(ip.Addr())) {
			t.Errorf("%s is public, or not of this machine", a)
		}
	}
}

package egressproxy_test

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/sandfarm/sandfarm/internal/egressproxy"
)

func TestPublic(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"1.1.1.1": true, "2606:4700::1111": true, "2606:4700::1111%eth0": true, "168.63.129.15": true, "::ffff:1.1.1.1": true, "2a00:1450::1": true,
		"127.0.0.1": false, "127.255.255.254": false, "10.1.2.3": false, "172.16.0.1": false, "172.31.255.255": false, "192.168.1.1": false,
		"169.254.169.254": false, "169.254.170.2": false, "100.64.0.1": false, "100.100.100.200": false, "192.0.0.192": false, "168.63.129.16": false, "161.26.0.7": false, "166.9.1.1": false, "166.12.0.1": true,
		"0.0.0.0": false, "0.1.2.3": false, "224.0.0.1": false, "239.255.255.250": false, "240.0.0.1": false, "255.255.255.255": false,
		"192.0.2.1": false, "198.51.100.1": false, "203.0.113.1": false, "198.18.0.1": false, "192.88.99.1": false,
		"::": false, "::1": false, "::7f00:1": false, "::a9fe:a9fe": false, "::ffff:127.0.0.1": false, "::ffff:169.254.169.254": false,
		"::ffff:0:127.0.0.1": false, "64:ff9b::7f00:1": false, "64:ff9b::101:101": false, "64:ff9b:1::a9fe:a9fe": false,
		"2002:7f00:1::": false, "2002:a9fe:a9fe::1": false, "2001::1": false, "2001:0:7f00:1::": false, "2001:db8::1": false, "3fff::1": false,
		"fc00::1": false, "fd00:ec2::254": false, "fe80::1": false, "fe80::1%eth0": false, "fec0::1": false, "ff02::1": false,
		"100::1": false, "5f00::1": false, "4000::1": false, "1fff::1": false,
	} {
		if got := egressproxy.Public(netip.MustParseAddr(text)); got != want {
			t.Errorf("Public(%s) is %v", text, got)
		}
	}
	if egressproxy.Public(netip.Addr{}) {
		t.Error("no address is public")
	}
}

func TestControlRefusesBeforeConnecting(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var asked []netip.Addr
	dialer := net.Dialer{ControlContext: egressproxy.ControlDial(func(ip netip.Addr) bool {
		asked = append(asked, ip)
		return egressproxy.Public(ip)
	})}
	if conn, err := dialer.DialContext(t.Context(), "tcp", l.Addr().String()); !errors.Is(err, egressproxy.ErrNotPublic) {
		t.Fatalf("connected to %v, error %v", conn, err)
	}
	if len(asked) != 1 || asked[0] != netip.MustParseAddr("127.0.0.1") {
		t.Errorf("checked %v", asked)
	}
}

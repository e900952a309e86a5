package images

import (
	"net/netip"
	"testing"

	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestAddressesOfABuild(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"8.8.8.8": true, "10.1.2.3": true, "fd00::1": true, "203.0.113.7": true,
		"127.0.0.1": false, "::1": false, "169.254.169.254": false, "::ffff:169.254.169.254": false, "::ffff:127.0.0.1": false,
		"0.0.0.0": false, "224.0.0.1": false, "255.255.255.255": false, "fe80::1": false,
	} {
		testbed.Diff(t, text, want, reachable(netip.MustParseAddr(text)))
	}
}

package testbed

import (
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
)

// The kernel gives ports from lastPort on to those who ask for any port, and to connections: a port from there may be taken by anybody until the
// program that it is meant for listens on it, or listens again.
const firstPort, lastPort = 10_000, 32_768

// Port returns a TCP port of 127.0.0.1 for a program that must be told its port in advance. No test of any process gets it again until this test has
// ended, so the program may also stop and start. Where the test itself listens, or can ask who does, use port 0 instead.
func Port(t testing.TB) string {
	t.Helper()
	for range 1000 {
		port := fmt.Sprint(firstPort + rand.IntN(lastPort-firstPort))                           //nolint:gosec // chance, not a secret
		claim, err := new(net.ListenConfig).ListenPacket(t.Context(), "udp", "127.0.0.1:"+port) // UDP leaves the TCP port to the program
		if err != nil {
			continue
		}
		listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:"+port)
		if err != nil {
			_ = claim.Close()
			continue
		}
		_ = listener.Close()
		t.Cleanup(func() { _ = claim.Close() })
		return port
	}
	t.Fatal("no port is free")
	return ""
}

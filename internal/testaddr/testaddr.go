//go:build linux

// Package testaddr reserves addresses for the servers that tests start.
package testaddr

import (
	"net"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// Reserve returns an address of 127.0.0.1 with a port that is free, and stays reserved until the test ends: the kernel gives it to no one who
// asks for any port, neither to listen nor to connect. A server may listen there, again and again: what holds the port is a socket that is
// bound with SO_REUSEADDR and does not listen, and servers set SO_REUSEADDR (those in Go, Redis and MinIO do). Until then connections are
// refused.
func Reserve(tb testing.TB) string {
	tb.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		tb.Fatalf("reserve an address: %v", err)
	}
	tb.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		tb.Fatalf("reserve an address: %v", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		tb.Fatalf("reserve an address: %v", err)
	}
	bound, err := unix.Getsockname(fd)
	if err != nil {
		tb.Fatalf("reserve an address: %v", err)
	}
	at, ok := bound.(*unix.SockaddrInet4)
	if !ok {
		tb.Fatalf("reserve an address: got %T", bound)
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(at.Port))
}

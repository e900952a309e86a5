package testbed

import (
	"net"
	"strconv"
	"syscall"
	"testing"
)

// Address returns an address of 127.0.0.1 for a server that must be told its port in advance, and that may stop and start. Its port is free, and stays
// reserved until the test ends: the kernel gives it to no one who asks for any port, neither to listen nor to connect. What holds the port is a
// socket that is bound with SO_REUSEADDR and does not listen; servers set SO_REUSEADDR (those in Go, Redis and MinIO do). Until a server listens,
// connections are refused. Where the test itself listens, or can ask who does, use port 0 instead.
func Address(tb testing.TB) string {
	tb.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		tb.Fatalf("reserve an address: %v", err)
	}
	syscall.CloseOnExec(fd)
	tb.Cleanup(func() { _ = syscall.Close(fd) })
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		tb.Fatalf("reserve an address: %v", err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		tb.Fatalf("reserve an address: %v", err)
	}
	bound, err := syscall.Getsockname(fd)
	if err != nil {
		tb.Fatalf("reserve an address: %v", err)
	}
	at, ok := bound.(*syscall.SockaddrInet4)
	if !ok {
		tb.Fatalf("reserve an address: got %T", bound)
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(at.Port))
}

// Port is the port of an Address.
func Port(tb testing.TB) string {
	tb.Helper()
	_, port, _ := net.SplitHostPort(Address(tb))
	return port
}

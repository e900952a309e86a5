//go:build linux

package testbed_test

import (
	"context"
	"errors"
	"net"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/testbed"
)

// ipLocalPortRange limits the ports that a socket gets: the lowest in the lower half, the highest in the upper half (Linux 6.3).
const ipLocalPortRange = 51

// A server can listen at a reserved address, and again after it has ended. Others do not get its port, not even as the last one that is left.
func TestReservedPortIsGivenToNoOne(t *testing.T) {
	t.Parallel()
	address := testbed.Address(t)
	if _, err := net.Dial("tcp", address); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial before a server listens: %v", err)
	}
	for range 2 {
		var l net.Listener
		testbed.Until(t, "a server can listen", func() bool { // a process that another test starts has the last listener until its exec
			var err error
			l, err = net.Listen("tcp", address)
			return err == nil
		})
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Close(), l.Close()
	}
	_, text, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	limited := true
	only := func(_, _ string, raw syscall.RawConn) error {
		return raw.Control(func(fd uintptr) {
			limited = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, ipLocalPortRange, port<<16|port) == nil
		})
	}
	l, err := (&net.ListenConfig{Control: only}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err == nil {
		_ = l.Close()
	}
	if limited && !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("listen with the reserved port as the only one: %v", err)
	}
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	conn, err := (&net.Dialer{Control: only}).Dial("tcp", other.Addr().String())
	if err == nil {
		_ = conn.Close()
	}
	if limited && !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("dial with the reserved port as the only one: %v", err)
	}
}

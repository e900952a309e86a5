//go:build unix

package httpserver

import (
	"math"
	"net"
	"runtime"

	"golang.org/x/sys/unix"
)

// Files is how many files this process may open. Go raises the soft limit to the hard one when a program starts.
func Files() int64 {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil || limit.Cur > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(limit.Cur) //nolint:gosec // checked above
}

// bufferLock is SO_BUF_LOCK of Linux 5.14 and later: whether the sizes of a socket's buffers are fixed.
const bufferLock = 72

// freeBuffer ends the bound of SetReadBuffer: the kernel sizes the buffer by how fast it is read. A kernel that cannot do that keeps the bound.
func freeBuffer(conn *net.TCPConn) {
	if runtime.GOOS != "linux" {
		return
	}
	if raw, err := conn.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, bufferLock, 0) }) //nolint:gosec // a descriptor
	}
}

// unread reports whether the kernel has bytes of a connection that were not read.
func unread(conn *net.TCPConn) (some bool) {
	if raw, err := conn.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			n, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT) //nolint:gosec // a descriptor
			some = err == nil && n > 0
		})
	}
	return some
}

// keepUnsent bounds what the kernel keeps of a connection that is not on its way to the client. A kernel that cannot do that does without.
func keepUnsent(conn *net.TCPConn, bytes int) {
	if raw, err := conn.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, bytes) }) //nolint:gosec // a descriptor
	}
}

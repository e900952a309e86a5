package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// dialWait is how long dial waits for the agent to listen: it may be called just after the sandbox has been started.
const dialWait = 10 * time.Second

// dialPause is the time between two attempts.
const dialPause = 5 * time.Millisecond

// copyBytes is the size of one read: large, so that bulk data needs few system calls.
const copyBytes = 256 << 10

// dial copies between the socket and its input and output, each direction until EOF. It reads and writes blocking
// descriptors directly: all output of a sandbox passes here, and the runtime's poller would cost as much as the copy.
func dial(ctx context.Context, socket string, in, out *os.File) error {
	ctx, cancel := context.WithTimeout(ctx, dialWait)
	defer cancel()
	conn, err := connect(ctx, socket)
	if err != nil {
		return fmt.Errorf("dial agent: %w", err)
	}
	file, err := conn.File() // a duplicate, and blocking
	if err != nil {
		return fmt.Errorf("take the socket's descriptor: %w", err)
	}
	defer func() { _ = file.Close() }()
	_ = conn.Close()
	fd := int(file.Fd()) //nolint:gosec // a descriptor is small
	outFD := int(out.Fd())
	_, _ = unix.FcntlInt(uintptr(outFD), unix.F_SETPIPE_SZ, copyBytes) //nolint:gosec // fails if it is not a pipe
	go func() {
		_ = copyAll(fd, int(in.Fd()))
		_ = unix.Shutdown(fd, unix.SHUT_WR)
	}()
	if err := copyAll(outFD, fd); err != nil {
		return fmt.Errorf("copy from agent: %w", err)
	}
	return nil
}

// copyAll copies bytes from one descriptor to the other until EOF.
func copyAll(to, from int) error {
	buf := make([]byte, copyBytes)
	for {
		n, err := unix.Read(from, buf)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return os.NewSyscallError("read", err)
		case n == 0:
			return nil
		}
		for left := buf[:n]; len(left) > 0; {
			n, err := unix.Write(to, left)
			if err != nil && !errors.Is(err, unix.EINTR) {
				return os.NewSyscallError("write", err)
			}
			left = left[max(n, 0):]
		}
	}
}

func connect(ctx context.Context, socket string) (*net.UnixConn, error) {
	var dialer net.Dialer
	for {
		conn, err := dialer.DialContext(ctx, "unix", socket)
		if err == nil {
			unixConn, ok := conn.(*net.UnixConn)
			if !ok {
				return nil, errors.New("not a unix socket")
			}
			return unixConn, nil
		}
		if errors.Is(err, os.ErrPermission) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(dialPause):
		}
	}
}

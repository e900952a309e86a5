package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// acceptPause is the delay after a failed accept, which means that descriptors or memory ran out.
const acceptPause = 50 * time.Millisecond

// ListenAndServe listens on a unix socket (abstract if its path begins with @) and serves every connection of dialUID or root
// (-1: of any user) until ctx is done.
func (s *Server) ListenAndServe(ctx context.Context, path string, dialUID int) error {
	file := !strings.HasPrefix(path, "@")
	if err := os.Remove(path); file && err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove old socket: %w", err)
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "unix", path)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	if file {
		if err := os.Chmod(path, 0o666); err != nil { //nolint:gosec // access is decided by the peer's uid
			return fmt.Errorf("open socket to others: %w", err)
		}
	}
	for {
		conn, err := listener.Accept()
		if ctx.Err() != nil {
			return nil // shutdown was requested
		}
		if err != nil {
			s.cfg.Logger.Warn("accept", "error", err)
			pause(ctx, acceptPause)
			continue
		}
		if !allowed(conn, dialUID) {
			_ = conn.Close()
			continue
		}
		go func() {
			if err := s.ServeConn(ctx, conn); err != nil {
				s.cfg.Logger.Warn("serve", "error", err)
			}
		}()
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// allowed reports whether the peer of a unix connection is dialUID or root.
func allowed(conn net.Conn, dialUID int) bool {
	if dialUID < 0 {
		return true
	}
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return false
	}
	raw, err := unixConn.SyscallConn()
	if err != nil {
		return false
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) //nolint:gosec // a descriptor is small
	}); err != nil || credErr != nil {
		return false
	}
	return cred.Uid == 0 || int(cred.Uid) == dialUID
}

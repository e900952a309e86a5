package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

// dialWait is how long dial waits for the agent to listen: it may be called just after the sandbox has been started.
const dialWait = 10 * time.Second

// dialPause is the time between two tries.
const dialPause = 5 * time.Millisecond

// dial copies between the socket and its input and output, each direction until its end.
func dial(ctx context.Context, socket string, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, dialWait)
	defer cancel()
	conn, err := connect(ctx, socket)
	if err != nil {
		return fmt.Errorf("dial agent: %w", err)
	}
	defer func() { _ = conn.Close() }()
	go func() {
		_, _ = io.Copy(conn, in)
		_ = conn.CloseWrite()
	}()
	if _, err := io.Copy(out, conn); err != nil {
		return fmt.Errorf("copy from agent: %w", err)
	}
	return nil
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

package engineproxy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/net/netutil"
)

const (
	headerTimeout = 10 * time.Second // a caller on the same host sends its header at once
	headerMax     = 64 << 10         // filters are in the query
	stopTimeout   = 5 * time.Second  // of calls that run when the proxy is stopped
)

// Socket is where a proxy listens.
type Socket struct {
	Path           string      // of the Unix socket; its directory is made if it is missing
	Mode           fs.FileMode // of the socket: who may connect
	MaxConnections int         // open at a time; others wait
}

// Serve listens and serves until ctx ends. ready, which may be nil, is called when connections are accepted.
func (p *Proxy) Serve(ctx context.Context, s Socket, ready func()) error {
	listener, err := listen(ctx, s)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", s.Path, err)
	}
	server := &http.Server{
		Handler: p, DisableGeneralOptionsHandler: true, ReadHeaderTimeout: headerTimeout, MaxHeaderBytes: headerMax,
		ErrorLog:    slog.NewLogLogger(p.cfg.Log.Handler(), slog.LevelDebug),
		BaseContext: func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
	}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		p.Close()
		if server.Shutdown(grace) != nil {
			_ = server.Close()
		}
	})
	p.cfg.Log.InfoContext(ctx, "engine proxy listens", slog.String("socket", s.Path), slog.String("namespace", p.cfg.Namespace))
	if ready != nil {
		ready()
	}
	err = server.Serve(netutil.LimitListener(listener, s.MaxConnections))
	if !stop() {
		<-stopped
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve: %w", err)
}

// listen makes the socket. One that a dead process left is replaced; only its owner can connect before its mode is set.
func listen(ctx context.Context, s Socket) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(s.Path), 0o755); err != nil { //nolint:gosec // others must reach the socket in it
		return nil, err
	}
	if info, err := os.Lstat(s.Path); err == nil {
		if info.Mode().Type() != fs.ModeSocket {
			return nil, errors.New("it exists and is no socket")
		}
		if conn, err := (&net.Dialer{}).DialContext(ctx, "unix", s.Path); err == nil {
			_ = conn.Close()
			return nil, errors.New("another process listens there")
		}
		if err := os.Remove(s.Path); err != nil {
			return nil, err
		}
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", s.Path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(s.Path, s.Mode); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

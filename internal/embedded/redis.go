package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

// RedisConfig says where Redis keeps its data and which program it is.
type RedisConfig struct {
	// Dir holds the data, the lock and the socket. Required; made if missing.
	Dir string
	// Binary is the redis-server program. "" looks for it in PATH; if there is none, an in-process
	// server without persistence is used.
	Binary string
	// MaxMemory is the limit on its data in bytes: beyond it writes are refused, and nothing is evicted. 0: no limit. The in-process
	// server has none.
	MaxMemory int64
	// SyncAlways makes it sync its append-only file with each write, before it answers, instead of every second.
	SyncAlways bool
	// Logger gets the output of the server, and its restarts. nil means slog.Default().
	Logger *slog.Logger
}

// Redis is a server that only this process uses, on a unix socket.
type Redis struct {
	addr       string
	persistent bool
	stop       func() error
	close      sync.Once
	err        error
}

// StartRedis starts the server and returns when it answers. ctx bounds the start only; Close ends the server. A second
// call for a folder that is in use fails. A server that a killed process left running is stopped first.
func StartRedis(ctx context.Context, cfg RedisConfig) (*Redis, error) {
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	if cfg.Dir == "" {
		return nil, errors.New("configure Redis: a folder is needed")
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("find Redis folder: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make Redis folder: %w", err)
	}
	// The kernel reports the child's working folder with links resolved; ours must match it.
	if cfg.Dir, err = filepath.EvalSymlinks(dir); err != nil {
		return nil, fmt.Errorf("find Redis folder: %w", err)
	}
	lock, err := lockDir(cfg.Dir, redisLockFile)
	if err != nil {
		return nil, err
	}
	r, err := startLocked(ctx, cfg)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	stop := r.stop
	r.stop = func() error { return errors.Join(stop(), lock.Close()) }
	return r, nil
}

func startLocked(ctx context.Context, cfg RedisConfig) (*Redis, error) {
	addr, err := socketPath(cfg.Dir)
	if err != nil {
		return nil, err
	}
	binary := cfg.Binary
	if binary == "" {
		binary, err = exec.LookPath("redis-server")
		if errors.Is(err, exec.ErrNotFound) {
			return startMemory(ctx, cfg, addr)
		}
		if err != nil {
			return nil, fmt.Errorf("look for redis-server: %w", err)
		}
	}
	return startServer(ctx, cfg, binary, addr)
}

// Network is "unix".
func (r *Redis) Network() string { return "unix" }

// Addr is the path of the socket.
func (r *Redis) Addr() string { return r.addr }

// Persistent reports whether data outlives the process.
func (r *Redis) Persistent() bool { return r.persistent }

// Close shuts the server down and waits until it has ended. It may be called more than once.
func (r *Redis) Close() error {
	r.close.Do(func() { r.err = r.stop() })
	return r.err
}

package embedded

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"golang.org/x/sys/unix"
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

const (
	redisLockFile = "redis.lock"
	socketFile    = "redis.sock"
	// maxSocketPath is the longest path of a unix socket, without its final NUL.
	maxSocketPath = 107
)

// lockDir locks the folder for this process. The lock ends with the process; children do not inherit it.
func lockDir(dir, name string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = fmt.Errorf("lock folder: another process uses %s; stop it, or choose another folder", dir)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// RedisSocket returns the path of the socket of a server that StartRedis started in a folder.
func RedisSocket(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("find Redis folder: %w", err)
	}
	if resolved, err := filepath.EvalSymlinks(dir); err == nil {
		dir = resolved // as StartRedis does
	}
	return socketPath(dir)
}

// socketPath returns the socket's path in dir, or a short one in the temporary directory if that is too long.
func socketPath(dir string) (string, error) {
	if path := filepath.Join(dir, socketFile); len(path) <= maxSocketPath {
		return path, nil
	}
	sum := sha256.Sum256([]byte(dir))
	name := fmt.Sprintf("sandfarm-%d-%s", os.Geteuid(), hex.EncodeToString(sum[:6]))
	for _, tmp := range []string{os.TempDir(), "/tmp"} {
		short := filepath.Join(tmp, name)
		if path := filepath.Join(short, socketFile); len(path) <= maxSocketPath {
			return path, ownDir(short)
		}
	}
	return "", fmt.Errorf("place Redis socket: every path is longer than %d bytes", maxSocketPath)
}

// ownDir makes a folder in a directory that others can write to, and refuses one that belongs to another user.
func ownDir(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("make socket folder: %w", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("stat socket folder: %w", err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || info.Mode().Perm()&0o077 != 0 || int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("check socket folder: %s belongs to another user or is open to others; remove it", dir)
	}
	return nil
}

// clockTick is how often the clock of the in-process server is advanced: it does not expire keys on its own.
const clockTick = 100 * time.Millisecond

// startMemory serves an in-process Redis on a unix socket: clients see no difference, and no other user of the machine can
// connect.
func startMemory(ctx context.Context, cfg RedisConfig, addr string) (*Redis, error) {
	if err := os.Remove(addr); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove old Redis socket: %w", err)
	}
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "unix", addr)
	if err != nil {
		return nil, fmt.Errorf("listen for Redis: %w", err)
	}
	if err := os.Chmod(addr, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("restrict Redis socket: %w", err), listener.Close())
	}
	runCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	m := &memory{db: miniredis.NewMiniRedis(), listener: listener}
	m.all.Go(func() { m.accept(runCtx) })
	m.all.Go(func() { m.tick(runCtx) })
	cfg.Logger.WarnContext(ctx, "no redis-server found: an in-process one is used, and jobs do not outlive this process",
		slog.String("socket", addr))
	stop := func() error {
		cancel()
		err := listener.Close()
		m.all.Wait()
		m.db.Close()
		return err
	}
	return &Redis{addr: addr, stop: stop}, nil
}

type memory struct {
	db       *miniredis.Miniredis
	listener net.Listener
	all      sync.WaitGroup
}

// accept relays each connection to the server, until the listener closes.
func (m *memory) accept(ctx context.Context) {
	for {
		outer, err := m.listener.Accept()
		if err != nil {
			return
		}
		inner, err := m.db.Dial()
		if err != nil {
			_ = outer.Close()
			continue
		}
		m.all.Go(func() { relay(ctx, outer, inner) })
	}
}

// relay copies both ways until one side ends or ctx does.
func relay(ctx context.Context, a, b net.Conn) {
	closeBoth := sync.OnceFunc(func() {
		_ = a.Close()
		_ = b.Close()
	})
	defer context.AfterFunc(ctx, closeBoth)()
	var both sync.WaitGroup
	both.Go(func() { _, _ = io.Copy(a, b); closeBoth() })
	both.Go(func() { _, _ = io.Copy(b, a); closeBoth() })
	both.Wait()
}

func (m *memory) tick(ctx context.Context) {
	ticker := time.NewTicker(clockTick)
	defer ticker.Stop()
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			m.db.FastForward(now.Sub(last))
			last = now
		}
	}
}

package embedded

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

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

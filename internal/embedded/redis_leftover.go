package embedded

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// pidFile holds the process id of the child and its start time, so that a later process with the same id is not mistaken for it.
const pidFile = "redis.pid"

func writePID(dir string, pid int) error {
	began, err := startTicks(pid)
	if err != nil {
		return err
	}
	text := fmt.Sprintf("%d %d\n", pid, began)
	if err := os.WriteFile(filepath.Join(dir, pidFile), []byte(text), 0o600); err != nil {
		return fmt.Errorf("write Redis pid: %w", err)
	}
	return nil
}

// stopLeftover ends the child of a killed process, if it still runs: two servers would destroy the append-only file. The caller
// holds the folder's lock, so no other process owns the child.
func stopLeftover(ctx context.Context, cfg RedisConfig) error {
	pid, ok, err := leftover(cfg.Dir)
	if err != nil || !ok {
		return err
	}
	cfg.Logger.WarnContext(ctx, "a Redis server left over by an earlier run is stopped", slog.Int("pid", pid))
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("stop leftover Redis: %w", err)
		}
		gone, err := waitGone(ctx, cfg.Dir)
		if err != nil || gone {
			return err
		}
	}
	return fmt.Errorf("stop leftover Redis: process %d does not end", pid)
}

func waitGone(ctx context.Context, dir string) (bool, error) {
	ticker := time.NewTicker(redisPoll)
	defer ticker.Stop()
	timeout := time.NewTimer(redisStopTimeout)
	defer timeout.Stop()
	for {
		if _, ok, err := leftover(dir); err != nil || !ok {
			return err == nil, err
		}
		select {
		case <-ctx.Done():
			return false, fmt.Errorf("stop leftover Redis: %w", ctx.Err())
		case <-timeout.C:
			return false, nil
		case <-ticker.C:
		}
	}
}

// leftover returns the process in the pid file if it is certainly our former child: same id, same start time, named
// redis-server, with dir as its working directory.
func leftover(dir string) (pid int, ok bool, err error) {
	text, err := os.ReadFile(filepath.Join(dir, pidFile))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("read Redis pid: %w", err)
	}
	var began uint64
	if _, err := fmt.Sscanf(string(text), "%d %d", &pid, &began); err != nil || pid <= 1 {
		return 0, false, nil
	}
	if now, err := startTicks(pid); err != nil || now != began {
		return 0, false, nil
	}
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	name, err := os.ReadFile(filepath.Join(proc, "comm"))
	if err != nil || !strings.HasPrefix(string(name), "redis") {
		return 0, false, nil
	}
	if home, err := os.Readlink(filepath.Join(proc, "cwd")); err != nil || home != dir {
		return 0, false, nil
	}
	return pid, true, nil
}

// startTicks returns the start time of a process, in clock ticks since boot. A zombie counts as ended.
func startTicks(pid int) (uint64, error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, fmt.Errorf("read start of process: %w", err)
	}
	// The name, in parentheses, may contain anything; the state and then numbers follow.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" {
		return 0, errors.New("read start of process: it has ended")
	}
	began, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("parse start of process: %w", err)
	}
	return began, nil
}

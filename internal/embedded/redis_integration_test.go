//go:build integration

package embedded_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/embedded"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// hostDir, in the environment, makes this test binary a host of a Redis that waits to be killed.
const hostDir = "EMBEDDED_TEST_HOST_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(hostDir); dir != "" {
		host(dir)
	}
	os.Exit(m.Run())
}

// host starts a Redis, prints a line, and waits to be killed.
func host(dir string) {
	if _, err := embedded.StartRedis(context.Background(), embedded.RedisConfig{Dir: dir, Logger: quiet()}); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("ready")
	select {}
}

// serverPID asks the server for its process id.
func serverPID(t *testing.T, c *redis.Client) int {
	t.Helper()
	var pid int
	testbed.Until(t, "INFO", func() bool {
		info, err := c.Info(t.Context(), "server").Result()
		if err != nil {
			return false
		}
		_, rest, _ := strings.Cut(info, "process_id:")
		text, _, _ := strings.Cut(rest, "\r\n")
		pid, err = strconv.Atoi(text)
		return err == nil
	})
	return pid
}

// running reports whether a process runs; a zombie does not.
func running(pid int) bool {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	return err == nil && !strings.Contains(string(text), ") Z ")
}

func mustGet(t *testing.T, c *redis.Client, key, want string) {
	t.Helper()
	if got, err := c.Get(t.Context(), key).Result(); err != nil || got != want {
		t.Errorf("Get(%q) = %q, %v; want %q", key, got, err, want)
	}
}

func mustSet(t *testing.T, c *redis.Client, key, value string) {
	t.Helper()
	if err := c.Set(t.Context(), key, value, 0).Err(); err != nil {
		t.Fatalf("Set(%q): %v", key, err)
	}
}

func TestRedisRestartKeepsData(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := startRedis(t, dir)
	if !r.Persistent() {
		t.Error("Persistent = false, want true")
	}
	c := client(t, r)
	mustSet(t, c, "k", "v")
	for key, want := range map[string]string{"appendonly": "yes", "appendfsync": "everysec", "maxmemory-policy": "noeviction", "port": "0"} {
		testbed.Diff(t, key, want, c.ConfigGet(t.Context(), key).Val()[key])
	}
	info, err := os.Stat(r.Addr())
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("socket mode = %v, %v; want 0700", info.Mode(), err)
	}
	pid := serverPID(t, c)
	if group, err := syscall.Getpgid(pid); err != nil || group != pid {
		t.Errorf("process group = %d, %v; want its own, %d", group, err, pid)
	}
	for range 2 {
		if err := r.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	if running(pid) {
		t.Errorf("process %d runs after Close", pid)
	}
	mustGet(t, client(t, startRedis(t, dir)), "k", "v")
}

// For redis.durability = aof a write is on the disk when it is answered.
func TestRedisSyncsAlways(t *testing.T) {
	t.Parallel()
	r, err := embedded.StartRedis(t.Context(), embedded.RedisConfig{Dir: t.TempDir(), Logger: quiet(), SyncAlways: true})
	testbed.Must(t, err)
	t.Cleanup(func() { _ = r.Close() })
	testbed.Diff(t, "appendfsync", "always", client(t, r).ConfigGet(t.Context(), "appendfsync").Val()["appendfsync"])
}

// A full Redis refuses writes; it evicts nothing.
func TestRedisHasAMemoryLimit(t *testing.T) {
	t.Parallel()
	const limit = 32 << 20
	r, err := embedded.StartRedis(t.Context(), embedded.RedisConfig{Dir: t.TempDir(), Logger: quiet(), MaxMemory: limit})
	testbed.Must(t, err)
	t.Cleanup(func() { _ = r.Close() })
	c := client(t, r)
	if got := c.ConfigGet(t.Context(), "maxmemory").Val()["maxmemory"]; got != strconv.Itoa(limit) {
		t.Errorf("maxmemory = %q, want %d", got, limit)
	}
	text := strings.Repeat("x", 1<<20)
	refused := 0
	for i := range 64 {
		if err := c.Set(t.Context(), strconv.Itoa(i), text, 0).Err(); err != nil {
			if !strings.HasPrefix(err.Error(), "OOM") {
				t.Fatalf("Set: %v", err)
			}
			refused++
		}
	}
	if kept := int(c.DBSize(t.Context()).Val()); refused < 32 || kept+refused != 64 || kept < 16 {
		t.Errorf("of 64 MiB %d values were refused and %d kept", refused, kept)
	}
}

func TestRedisRestartsWhenKilled(t *testing.T) {
	t.Parallel()
	r := startRedis(t, t.TempDir())
	c := client(t, r)
	for i := range 3 {
		key := strconv.Itoa(i)
		mustSet(t, c, key, "v")
		pid := serverPID(t, c)
		testbed.Must(t, syscall.Kill(pid, syscall.SIGKILL))
		began := time.Now()
		testbed.Until(t, "server comes back", func() bool { return c.Ping(t.Context()).Err() == nil && serverPID(t, c) != pid })
		t.Logf("back after %s", time.Since(began))
		mustGet(t, c, key, "v")
	}
	mustGet(t, c, "0", "v")
	pid := serverPID(t, c)
	if err := r.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if running(pid) {
		t.Errorf("process %d runs after Close", pid)
	}
}

func TestRedisDiesWithItsParent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pid := killedHost(t, dir)
	testbed.Until(t, "server ends with its parent", func() bool { return !running(pid) })
	mustGet(t, client(t, startRedis(t, dir)), "k", "v")
}

func TestRedisLeftOverIsStopped(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	// Started without the parent-death signal, like a server that outlived its parent.
	old := exec.Command("redis-server", "--port", "0", "--unixsocket", filepath.Join(dir, "old.sock"), "--appendonly", "yes", "--save", "", "--dir", dir)
	old.Dir = dir
	testbed.Must(t, old.Start())
	pid := old.Process.Pid
	defer func() {
		_ = old.Process.Kill()
		_ = old.Wait()
	}()
	c := redis.NewClient(&redis.Options{Network: "unix", Addr: filepath.Join(dir, "old.sock")})
	defer func() { _ = c.Close() }()
	testbed.Until(t, "old server answers", func() bool { return c.Ping(t.Context()).Err() == nil })
	mustSet(t, c, "k", "v")
	writePID(t, dir, pid)
	mustGet(t, client(t, startRedis(t, dir)), "k", "v")
	if running(pid) {
		t.Errorf("process %d still runs beside the new one", pid)
	}
}

// writePID writes the pid file of a server into dir.
func writePID(t *testing.T, dir string, pid int) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	testbed.Must(t, err)
	began := strings.Fields(string(text))[21]
	testbed.Must(t, os.WriteFile(filepath.Join(dir, "redis.pid"), []byte(strconv.Itoa(pid)+" "+began), 0o600))
}

func TestForeignProcessInThePIDFileIsNotStopped(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	stranger := exec.Command("sleep", "600")
	stranger.Dir = dir
	testbed.Must(t, stranger.Start())
	defer func() {
		_ = stranger.Process.Kill()
		_ = stranger.Wait()
	}()
	pid := stranger.Process.Pid
	writePID(t, dir, pid)
	startRedis(t, dir)
	if !running(pid) {
		t.Error("a process that is not our Redis was stopped")
	}
}

// killedHost runs a Redis in another process, sets a key there, and kills that process. It returns the server's process id.
func killedHost(t *testing.T, dir string) int {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), hostDir+"="+dir)
	out, err := cmd.StdoutPipe()
	testbed.Must(t, err)
	testbed.Must(t, cmd.Start())
	printed := make([]byte, 200)
	n, err := out.Read(printed)
	if err != nil || strings.TrimSpace(string(printed[:n])) != "ready" {
		t.Fatalf("host said %q, %v", printed[:n], err)
	}
	c := redis.NewClient(&redis.Options{Network: "unix", Addr: filepath.Join(dir, "redis.sock")})
	defer func() { _ = c.Close() }()
	mustSet(t, c, "k", "v")
	pid := serverPID(t, c)
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
	testbed.Must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	return pid
}

func TestRedisSocketIsShortWhereTheFolderIsDeep(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), strings.Repeat("deep/", 30))
	r := startRedis(t, dir)
	defer func() {
		if err := r.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		_ = os.RemoveAll(filepath.Dir(r.Addr()))
	}()
	if len(r.Addr()) > 107 || strings.HasPrefix(r.Addr(), dir) {
		t.Errorf("socket = %q, want a short path elsewhere", r.Addr())
	}
	info, err := os.Stat(filepath.Dir(r.Addr()))
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("socket folder = %v, %v; want mode 0700", info.Mode(), err)
	}
	c := client(t, r)
	mustSet(t, c, "k", "v")
	mustGet(t, c, "k", "v")
}

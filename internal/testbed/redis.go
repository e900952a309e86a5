package testbed

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"
)

// Redis is the redis-server of one test, on a Unix socket. It stores nothing on disk unless its arguments say so.
type Redis struct {
	Socket string

	args []string
	cmd  *exec.Cmd
}

// NewRedis starts a redis-server with additional arguments. It stops when the test ends.
func NewRedis(t testing.TB, args ...string) *Redis {
	t.Helper()
	dir, err := os.MkdirTemp("", "sf") // t.TempDir may be too long for the path of a socket
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "redis.sock")
	s := &Redis{Socket: socket, args: append([]string{
		"--port", "0", "--unixsocket", socket, "--dir", dir, "--save", "", "--loglevel", "warning",
	}, args...)}
	t.Cleanup(func() {
		s.Kill()
		_ = os.RemoveAll(dir)
	})
	s.Start(t)
	return s
}

// Start starts it again after Kill, with the files that it left.
func (s *Redis) Start(t testing.TB) {
	t.Helper()
	s.cmd = exec.Command("redis-server", s.args...) //nolint:gosec // a test's own arguments
	s.cmd.Stderr = os.Stderr
	if err := s.cmd.Start(); err != nil {
		t.Fatalf("start redis-server: %v", err)
	}
	waitUntilUp(t, s.Dial())
}

// Kill kills it with SIGKILL.
func (s *Redis) Kill() {
	if s.cmd.Process != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
	}
}

// Pause stops it with SIGSTOP: connections stay open, and what they receive is carried out after Resume.
func (s *Redis) Pause() { _ = s.cmd.Process.Signal(syscall.SIGSTOP) }

// Resume ends Pause.
func (s *Redis) Resume() { _ = s.cmd.Process.Signal(syscall.SIGCONT) }

// Dial returns a client, which the caller closes.
func (s *Redis) Dial() redis.UniversalClient {
	return redis.NewClient(&redis.Options{Network: "unix", Addr: s.Socket})
}

// Client returns a client that is closed when the test ends.
func (s *Redis) Client(t testing.TB) redis.UniversalClient {
	t.Helper()
	rdb := s.Dial()
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// waitUntilUp waits until the server answers, and closes the client.
func waitUntilUp(t testing.TB, rdb redis.UniversalClient) {
	t.Helper()
	defer func() { _ = rdb.Close() }()
	Until(t, "redis-server answers", func() bool { return rdb.Ping(t.Context()).Err() == nil })
}

// ErrCrash is what a process sees after its end.
var ErrCrash = errors.New("the process has crashed")

// Crasher is a hook of a Redis client. It ends the client's process at one of its commands: this one and all that follow fail with ErrCrash. The
// zero value passes everything. It is for one goroutine.
type Crasher struct {
	left  int  // commands until the crash; 0: none is planned
	late  bool // the command is carried out, but its answer is lost
	ended bool
}

// Arm plans the end at the command with this number, counted from 1. With late Redis carries the command out, and the answer is lost.
func (c *Crasher) Arm(at int, late bool) { *c = Crasher{left: at, late: late} }

// Heal starts the process anew.
func (c *Crasher) Heal() { *c = Crasher{} }

// Dead reports whether the process has come to its end.
func (c *Crasher) Dead() bool { return c.ended }

// DialHook implements redis.Hook.
func (c *Crasher) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (c *Crasher) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		now, late := c.now()
		if !now || late {
			if err := next(ctx, cmd); !now {
				return err
			}
		}
		cmd.SetErr(ErrCrash)
		return ErrCrash
	}
}

// ProcessPipelineHook implements redis.Hook.
func (c *Crasher) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		now, late := c.now()
		if !now || late {
			if err := next(ctx, cmds); !now {
				return err
			}
		}
		for _, cmd := range cmds {
			cmd.SetErr(ErrCrash)
		}
		return ErrCrash
	}
}

// now counts a command, and reports whether the process ends with it, and whether Redis still carries it out.
func (c *Crasher) now() (crash, late bool) {
	if c.ended {
		return true, false
	}
	if c.left == 0 {
		return false, false
	}
	c.left--
	c.ended = c.left == 0
	return c.ended, c.late
}

// Package redistest gives tests a redis-server of their own, and a way to it that can be cut.
package redistest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// startPatience bounds the start of a redis-server, which takes milliseconds.
const startPatience = 30 * time.Second

// Server is a redis-server of one test, on a socket. It keeps nothing unless its arguments say so.
type Server struct {
	Socket string

	args []string
	cmd  *exec.Cmd
}

// New starts a redis-server with more arguments. It is gone when the test ends.
func New(t testing.TB, args ...string) *Server {
	t.Helper()
	dir, err := os.MkdirTemp("", "sf") // t.TempDir may be too long for the path of a socket
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "redis.sock")
	s := &Server{Socket: socket, args: append([]string{
		"--port", "0", "--unixsocket", socket, "--dir", dir, "--save", "", "--loglevel", "warning",
	}, args...)}
	t.Cleanup(func() {
		s.Kill()
		_ = os.RemoveAll(dir)
	})
	s.Start(t)
	return s
}

// Start starts it again after Kill, with the files that it has left.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	s.cmd = exec.Command("redis-server", s.args...) //nolint:gosec // a test's own arguments
	s.cmd.Stderr = os.Stderr
	if err := s.cmd.Start(); err != nil {
		t.Fatalf("start redis-server: %v", err)
	}
	answers(t, s.Dial())
}

// Kill ends it as kill -9 does.
func (s *Server) Kill() {
	if s.cmd.Process != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
	}
}

// Dial gives a client that the caller closes.
func (s *Server) Dial() redis.UniversalClient {
	return redis.NewClient(&redis.Options{Network: "unix", Addr: s.Socket})
}

// Client gives a client that is closed when the test ends.
func (s *Server) Client(t testing.TB) redis.UniversalClient {
	t.Helper()
	rdb := s.Dial()
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// answers waits until a server answers, and closes the client.
func answers(t testing.TB, rdb redis.UniversalClient) {
	t.Helper()
	defer func() { _ = rdb.Close() }()
	for deadline := time.Now().Add(startPatience); rdb.Ping(t.Context()).Err() != nil; time.Sleep(5 * time.Millisecond) { //nolint:forbidigo // a process has no signal for it
		if time.Now().After(deadline) {
			t.Fatal("redis-server does not answer")
		}
	}
}

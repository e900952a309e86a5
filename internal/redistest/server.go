// Package redistest starts a redis-server for a test, and a proxy before it whose connections the test can cut.
package redistest

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/testbed"
)

// Server is the redis-server of one test, on a Unix socket. It stores nothing on disk unless its arguments say so.
type Server struct {
	Socket string

	args []string
	cmd  *exec.Cmd
}

// New starts a redis-server with additional arguments. It stops when the test ends.
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

// Start starts it again after Kill, with the files that it left.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	s.cmd = exec.Command("redis-server", s.args...) //nolint:gosec // a test's own arguments
	s.cmd.Stderr = os.Stderr
	if err := s.cmd.Start(); err != nil {
		t.Fatalf("start redis-server: %v", err)
	}
	waitUntilUp(t, s.Dial())
}

// Kill kills it with SIGKILL.
func (s *Server) Kill() {
	if s.cmd.Process != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
	}
}

// Pause stops it with SIGSTOP: connections stay open, and what they receive is carried out after Resume.
func (s *Server) Pause() { _ = s.cmd.Process.Signal(syscall.SIGSTOP) }

// Resume ends Pause.
func (s *Server) Resume() { _ = s.cmd.Process.Signal(syscall.SIGCONT) }

// Dial returns a client, which the caller closes.
func (s *Server) Dial() redis.UniversalClient {
	return redis.NewClient(&redis.Options{Network: "unix", Addr: s.Socket})
}

// Client returns a client that is closed when the test ends.
func (s *Server) Client(t testing.TB) redis.UniversalClient {
	t.Helper()
	rdb := s.Dial()
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// waitUntilUp waits until the server answers, and closes the client.
func waitUntilUp(t testing.TB, rdb redis.UniversalClient) {
	t.Helper()
	defer func() { _ = rdb.Close() }()
	testbed.Until(t, "redis-server answers", func() bool { return rdb.Ping(t.Context()).Err() == nil })
}

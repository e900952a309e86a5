//go:build unix

package testbed

import (
	"context"
	"crypto/sha1" //nolint:gosec // Redis names scripts by it
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
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

// Hook is a hook of a Redis client. It gets the commands of each round trip, and sends them by next. An error of its own becomes that of each command.
type Hook func(cmds []redis.Cmder, next func(...redis.Cmder) error) error

// DialHook implements redis.Hook.
func (h Hook) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (h Hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return h.run([]redis.Cmder{cmd}, func(cmds ...redis.Cmder) error { return next(ctx, cmds[0]) })
	}
}

// ProcessPipelineHook implements redis.Hook.
func (h Hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return h.run(cmds, func(cmds ...redis.Cmder) error { return next(ctx, cmds) })
	}
}

func (h Hook) run(cmds []redis.Cmder, next func(...redis.Cmder) error) error {
	var sent error
	err := h(cmds, func(cmds ...redis.Cmder) error {
		sent = next(cmds...)
		return sent
	})
	if err != nil && !errors.Is(err, sent) {
		for _, cmd := range cmds {
			cmd.SetErr(err)
		}
	}
	return err
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

// Stop is a place in the traffic with Redis at which a test acts, once.
type Stop struct {
	// Call is the script or the command: "job_finish", or "hgetall". See Scripts for the names of scripts.
	Call string
	// With is text that a word of the call contains, such as the id of a job; empty: any call.
	With string
	// Nth says which of these calls it is, counted from 1; 0 means 1.
	Nth int
	// After lets Redis do the call first: the client has not got the answer. Otherwise Redis has not got the call.
	After bool
	// Do acts while the call, or its answer, stands still. It gets the words of the call. If it returns false, the connection is closed, and
	// nothing passes.
	Do func(words []string) (pass bool)

	words []string
}

// Scripts names Lua scripts. It learns their hashes from the calls that carry a script's text. It is safe for concurrent use.
type Scripts struct {
	ends   map[string]string // name → how the text ends
	pieces map[string]string // name → a piece of the text

	mu     sync.Mutex
	byHash map[string]string
}

// NewScripts names scripts after the .lua files in a folder: a script has the name of the file that its text ends with. more has further
// names, with a piece of the text that no other script has.
func NewScripts(folder fs.FS, more map[string]string) (*Scripts, error) {
	s := &Scripts{ends: map[string]string{}, pieces: more, byHash: map[string]string{}}
	err := fs.WalkDir(folder, ".", func(file string, _ fs.DirEntry, err error) error {
		if err != nil || path.Ext(file) != ".lua" {
			return err
		}
		text, err := fs.ReadFile(folder, file)
		s.ends[strings.TrimSuffix(path.Base(file), ".lua")] = string(text)
		return err
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// call is the name of a command, or of the script that it calls. A script that is called by an unknown hash has no name: Redis will ask for
// its text.
func (s *Scripts) call(words []string) string {
	name := strings.ToLower(words[0])
	if s == nil || len(words) < 2 || name != "eval" && name != "evalsha" {
		return name
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if name == "evalsha" {
		return s.byHash[words[1]]
	}
	sum := sha1.Sum([]byte(words[1])) //nolint:gosec // as above
	hash := hex.EncodeToString(sum[:])
	if _, known := s.byHash[hash]; !known {
		s.byHash[hash] = s.nameOf(words[1])
	}
	return s.byHash[hash]
}

// nameOf is the name of a script; "" for an unknown one. Of two files that fit, it is the longer one.
func (s *Scripts) nameOf(text string) (name string) {
	for candidate, piece := range s.pieces {
		if strings.Contains(text, piece) {
			name = candidate
		}
	}
	longest := 0
	for candidate, end := range s.ends {
		if len(end) > longest && strings.HasSuffix(text, end) {
			name, longest = candidate, len(end)
		}
	}
	return name
}

// matches counts a call, and reports whether it is the one to stop at.
func (s *Stop) matches(call string, words []string) bool {
	if call != s.Call {
		return false
	}
	found := s.With == ""
	for _, word := range words[1:] {
		found = found || strings.Contains(word, s.With)
	}
	if found {
		s.Nth--
	}
	if !found || s.Nth > 0 {
		return false
	}
	s.words = words
	return true
}

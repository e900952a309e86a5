package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"
)

const (
	// redisStartTimeout bounds the first start: replaying a large append-only file takes a while.
	redisStartTimeout = 2 * time.Minute
	// redisStopTimeout bounds each step of a shutdown: the end of the append-only file has to be written.
	redisStopTimeout = 10 * time.Second
	// redisPoll is how often a starting or stopping server is checked.
	redisPoll = 20 * time.Millisecond
	// backoffMin and backoffMax bound the delay before a restart. A child that ran for backoffReset resets it to the minimum.
	backoffMin   = 100 * time.Millisecond
	backoffMax   = 5 * time.Second
	backoffReset = 30 * time.Second
)

// server is a supervised redis-server.
type server struct {
	cfg    RedisConfig
	binary string
	addr   string
	exited chan error    // exits of children, for the caller that waits for the start
	done   chan struct{} // closed when the supervisor and its last child have ended

	mu      sync.Mutex
	closing bool
	child   *os.Process   // nil if none runs
	wake    chan struct{} // closed on stop, to interrupt a delay
}

func startServer(ctx context.Context, cfg RedisConfig, binary, addr string) (*Redis, error) {
	if err := stopLeftover(ctx, cfg); err != nil {
		return nil, err
	}
	s := &server{cfg: cfg, binary: binary, addr: addr, exited: make(chan error, 1), done: make(chan struct{}), wake: make(chan struct{})}
	// context.WithoutCancel: the child outlives the start.
	go s.supervise(context.WithoutCancel(ctx))
	if err := s.waitReady(ctx); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	cfg.Logger.InfoContext(ctx, "embedded Redis started", slog.String("socket", addr), slog.String("dir", cfg.Dir))
	return &Redis{addr: addr, persistent: true, stop: s.stop}, nil
}

func (s *server) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, redisStartTimeout)
	defer cancel()
	ticker := time.NewTicker(redisPoll)
	defer ticker.Stop()
	for {
		if ping(ctx, s.addr) == nil {
			return nil
		}
		select {
		case err := <-s.exited:
			return fmt.Errorf("start Redis: %w", err)
		case <-ctx.Done():
			return fmt.Errorf("start Redis: %w", ctx.Err())
		case <-ticker.C:
		}
	}
}

// supervise keeps a child running until stop. It locks its OS thread: the kernel kills the child when the
// thread that started it ends, so the child ends with this process even if that is killed.
func (s *server) supervise(ctx context.Context) {
	defer close(s.done)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pause := backoffMin
	for {
		began := time.Now()
		err := s.runChild(ctx)
		if s.isClosing() {
			return
		}
		select {
		case s.exited <- err:
		default:
		}
		if time.Since(began) > backoffReset {
			pause = backoffMin
		}
		s.cfg.Logger.WarnContext(ctx, "embedded Redis ended and is started again",
			slog.Any("error", err), slog.Int64("pause_ms", pause.Milliseconds()))
		timer := time.NewTimer(pause)
		select {
		case <-s.wake:
			timer.Stop()
			return
		case <-timer.C:
		}
		pause = min(2*pause, backoffMax)
	}
}

// runChild starts one child and waits for its end.
func (s *server) runChild(ctx context.Context) error {
	out := newLineLog(ctx, s.cfg.Logger)
	cmd := exec.Command(s.binary, s.args()...) //nolint:noctx // stop ends it in order, not a context
	cmd.Dir = s.cfg.Dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"} //nolint:forbidigo // passed to the child, not a setting
	cmd.Stdout, cmd.Stderr = out, out
	// A process group of its own keeps Ctrl-C of the terminal away from it: the farm stops it last.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := s.start(cmd); err != nil {
		return err
	}
	err := errors.Join(writePID(s.cfg.Dir, cmd.Process.Pid), cmd.Wait())
	s.mu.Lock()
	s.child = nil
	s.mu.Unlock()
	_ = os.Remove(filepath.Join(s.cfg.Dir, pidFile))
	if err == nil {
		err = errors.New("it exited unexpectedly")
	}
	return fmt.Errorf("run %s: %w; it said last: %s", s.binary, err, out.tail())
}

// start starts the child unless stop was called first. It holds the lock, so stop sees every child.
func (s *server) start(cmd *exec.Cmd) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return errors.New("start redis-server: it is being stopped")
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start redis-server: %w", err)
	}
	s.child = cmd.Process
	return nil
}

func (s *server) args() []string {
	sync := "everysec"
	if s.cfg.SyncAlways {
		sync = "always"
	}
	return []string{
		"--port", "0",
		"--unixsocket", s.addr,
		"--unixsocketperm", "700",
		"--dir", s.cfg.Dir,
		"--daemonize", "no",
		"--supervised", "no",
		"--appendonly", "yes",
		"--appendfsync", sync,
		"--save", "",
		"--maxmemory", strconv.FormatInt(s.cfg.MaxMemory, 10),
		"--maxmemory-policy", "noeviction",
		"--protected-mode", "yes",
		"--logfile", "",
	}
}

// stop ends the child: by the SHUTDOWN command, then SIGTERM, then SIGKILL.
func (s *server) stop() error {
	s.mu.Lock()
	if !s.closing {
		s.closing = true
		close(s.wake)
	}
	child := s.child
	s.mu.Unlock()
	if child == nil {
		<-s.done
		return nil
	}
	// A server that refuses the command, such as one that is still loading, gets the signal at once.
	if shutdown(s.addr) == nil && s.ended(redisStopTimeout) {
		return nil
	}
	_ = child.Signal(syscall.SIGTERM)
	if s.ended(redisStopTimeout) {
		return nil
	}
	_ = child.Kill()
	<-s.done
	return errors.New("stop Redis: it had to be killed")
}

func (s *server) ended(within time.Duration) bool {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-s.done:
		return true
	case <-timer.C:
		return false
	}
}

func (s *server) isClosing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closing
}

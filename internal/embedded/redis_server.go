package embedded

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
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

// commandTimeout bounds one inline command: the server is on this machine.
const commandTimeout = 2 * time.Second

// ping checks whether the server is ready; a server that is still loading its data is not.
func ping(ctx context.Context, addr string) error {
	answer, err := command(ctx, addr, "PING")
	if err != nil {
		return err
	}
	if answer != "+PONG" {
		return fmt.Errorf("ping Redis: it answered %q", answer)
	}
	return nil
}

// shutdown sends SHUTDOWN. A server that obeys closes the connection without a reply.
func shutdown(addr string) error {
	answer, err := command(context.Background(), addr, "SHUTDOWN") //nolint:forbidigo // Close has no context; command bounds itself
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
		return nil
	}
	if err != nil {
		return err
	}
	return fmt.Errorf("shut Redis down: it answered %q", answer)
}

func command(ctx context.Context, addr, text string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", addr)
	if err != nil {
		return "", fmt.Errorf("dial Redis: %w", err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(commandTimeout)); err != nil {
		return "", fmt.Errorf("bound Redis command: %w", err)
	}
	if _, err := io.WriteString(conn, text+"\r\n"); err != nil {
		return "", fmt.Errorf("write Redis command: %w", err)
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("read Redis answer: %w", err)
	}
	return strings.TrimRight(line, "\r\n"), nil
}

// lineLog logs the output of a child, and keeps its last lines for the error when it ends.
type lineLog struct {
	ctx context.Context // an io.Writer gets none
	log *slog.Logger

	mu   sync.Mutex
	rest []byte
	last []string
}

// keptLines is how many lines of a child are kept; maxLine bounds a line without a newline.
const (
	keptLines = 5
	maxLine   = 8 << 10
)

func newLineLog(ctx context.Context, log *slog.Logger) *lineLog { return &lineLog{ctx: ctx, log: log} }

// Write logs complete lines; it never fails.
func (l *lineLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rest = append(l.rest, p...)
	for {
		line, rest, ok := bytes.Cut(l.rest, []byte("\n"))
		if !ok {
			break
		}
		l.rest = rest
		l.line(strings.TrimSpace(string(line)))
	}
	if len(l.rest) > maxLine {
		l.rest = nil
	}
	return len(p), nil
}

func (l *lineLog) line(text string) {
	if text == "" {
		return
	}
	l.log.DebugContext(l.ctx, "redis-server says", slog.String("line", text))
	l.last = append(l.last, text)
	if len(l.last) > keptLines {
		l.last = l.last[1:]
	}
}

func (l *lineLog) tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.last, " | ")
}

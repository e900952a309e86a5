package engine

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/docker/docker/api/types/container"
	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// dialTimeout covers the start of the process: usually 50 to 80 ms, seconds during a burst.
const dialTimeout = 30 * time.Second

// Dial runs a command in a container and returns its stdin and stdout as one stream. Close ends the stream, and the command reads the end
// of its stdin. When the command exits, Read returns an error with its stderr.
// User is a name or "uid:gid"; empty: the container's.
func (e *Engine) Dial(ctx context.Context, id string, cmd []string, user string) (io.ReadWriteCloser, error) {
	var s *stream
	err := e.call(ctx, dialTimeout, "exec in container", func(ctx context.Context) error {
		made, err := e.cli.ContainerExecCreate(ctx, id, execOptions(user, cmd))
		if err != nil {
			return err
		}
		s, err = e.attach(ctx, made.ID)
		return err
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// execOptions describe the command of Dial.
func execOptions(user string, cmd []string) container.ExecOptions {
	return container.ExecOptions{User: user, Cmd: cmd, AttachStdin: true, AttachStdout: true, AttachStderr: true}
}

// attach starts an exec and takes its connection over. The Docker client's own call has no timeout, so a stuck engine would block the
// caller forever.
func (e *Engine) attach(ctx context.Context, execID string) (_ *stream, err error) {
	body, err := json.Marshal(container.ExecStartOptions{})
	if err != nil {
		return nil, fmt.Errorf("pack request: %w", err)
	}
	url := "http://engine/v" + e.cli.ClientVersion() + "/exec/" + execID + "/start"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "tcp")

	conn, err := e.cli.Dialer()(ctx)
	if err != nil {
		return nil, e.unavailable(err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer func() {
		if !stop() && err == nil {
			err = ctx.Err()
		}
		if err != nil {
			err = errors.Join(err, conn.Close())
		}
	}()
	if err := req.Write(conn); err != nil {
		return nil, fmt.Errorf("ask for stream: %w", err)
	}
	r := bufio.NewReaderSize(conn, streamBuffer)
	resp, err := http.ReadResponse(r, req) //nolint:bodyclose // the body is the connection, which the stream or the defer above closes
	if err != nil {
		return nil, fmt.Errorf("await stream: %w", err)
	}
	// The body of a switched connection is the stream itself and is not read through resp.
	if resp.StatusCode != http.StatusSwitchingProtocols && resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
		return nil, execError(resp.StatusCode, text)
	}
	return &stream{conn: conn, r: r}, nil
}

// execError turns the engine's answer to an exec into an error.
func execError(status int, text []byte) error {
	var answer struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(text, &answer) != nil || answer.Message == "" {
		answer.Message = string(bytes.TrimSpace(text))
	}
	code := farm.CodeInternal
	switch status {
	case http.StatusNotFound:
		code = farm.CodeNotFound
	case http.StatusConflict:
		code = farm.CodeConflict
	}
	return farm.Errorf(code, "the engine refused the exec with status %d: %s", status, answer.Message)
}

// localTimeout bounds the connect: the listener is a process of this host, which answers at once or not at all.
const localTimeout = 2 * time.Second

// A container that was just started listens after a few milliseconds.
const (
	listenTimeout = 500 * time.Millisecond
	listenPause   = 3 * time.Millisecond
)

// ErrNotLocal says that a container's sockets cannot be reached from this process: the engine is on another host, this process may not
// enter its network namespace, or the runtime has its own sockets (gVisor). Dial works there.
var ErrNotLocal = errors.New("the container's sockets cannot be reached from this process")

// Netns is the network namespace of a running container, as long as it is open. Its methods may be called at the same time.
type Netns struct{ file *os.File }

// Netns opens the network namespace of a container. It needs an engine on this host and the right to enter namespaces (root); otherwise it
// returns ErrNotLocal. The caller closes it.
func (e *Engine) Netns(ctx context.Context, id string) (*Netns, error) {
	if os.Geteuid() != 0 {
		return nil, ErrNotLocal
	}
	pid, full, err := e.process(ctx, id)
	if err != nil {
		return nil, err
	}
	file, err := os.Open("/proc/" + strconv.Itoa(pid) + "/ns/net")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotLocal, err)
	}
	// Check the process after its namespace was opened: the pid may be one of another host, or by now of another process. The cgroup names
	// the container.
	groups, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil || !strings.Contains(string(groups), full) {
		_ = file.Close()
		return nil, fmt.Errorf("%w: process %d is not the container's", ErrNotLocal, pid)
	}
	return &Netns{file}, nil
}

// Close closes the namespace. Connections that were made in it stay.
func (s *Netns) Close() error { return s.file.Close() }

// DialTCP connects to an IP address and port in the namespace, such as those of its loopback.
func (s *Netns) DialTCP(ctx context.Context, address string) (*net.TCPConn, error) {
	return inside(s, func() (*net.TCPConn, error) {
		var dialer net.Dialer // it makes the socket on this thread: the address is not a name
		conn, err := dialer.DialContext(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		return conn.(*net.TCPConn), nil //nolint:errcheck // a tcp connection is one
	})
}

// Local is a stream to a socket of a container on this host.
type Local struct {
	*net.UnixConn
	space *Netns
}

// DialTCP connects to an IP address and port of the container, such as those of its loopback, until Close.
func (l *Local) DialTCP(ctx context.Context, address string) (*net.TCPConn, error) {
	return l.space.DialTCP(ctx, address)
}

// Close ends the stream.
func (l *Local) Close() error { return errors.Join(l.UnixConn.Close(), l.space.Close()) }

// DialLocal connects to an abstract unix socket ("@name") in a container's network namespace, without the engine: three processes copy
// a stream through an exec. ErrNotLocal: see Netns.
// It opens no file of the container: an abstract name exists in the network namespace alone, and belongs to the first listener, PID 1.
func (e *Engine) DialLocal(ctx context.Context, id, socket string) (_ *Local, err error) {
	if !strings.HasPrefix(socket, "@") {
		return nil, ErrNotLocal
	}
	space, err := e.Netns(ctx, id)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = space.Close()
		}
	}()
	connect := func() (int, error) { return connectTo(socket) }
	fd, err := inside(space, connect)
	for end := time.Now().Add(listenTimeout); errors.Is(err, unix.ECONNREFUSED) && time.Now().Before(end) && ctx.Err() == nil; {
		time.Sleep(listenPause) //nolint:forbidigo // nothing signals that a container listens
		fd, err = inside(space, connect)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotLocal, err)
	}
	file := os.NewFile(uintptr(fd), "agent") //nolint:gosec // a descriptor is small
	defer func() { _ = file.Close() }()
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotLocal, err)
	}
	return &Local{UnixConn: conn.(*net.UnixConn), space: space}, nil //nolint:errcheck // the socket is one
}

// DialSocket is DialLocal where that works, and else Dial of a command that connects to the socket.
func (e *Engine) DialSocket(ctx context.Context, id, socket string, command []string, user string) (io.ReadWriteCloser, error) {
	conn, err := e.DialLocal(ctx, id, socket)
	switch {
	case err == nil:
		return conn, nil
	case !errors.Is(err, ErrNotLocal):
		return nil, err
	}
	return e.Dial(ctx, id, command, user)
}

// process returns the pid of a running container's first process on the engine's host, and the container's full id.
func (e *Engine) process(ctx context.Context, id string) (pid int, full string, err error) {
	var local error
	err = e.call(ctx, readTimeout, "inspect container", func(ctx context.Context) error {
		got, err := e.cli.ContainerInspect(ctx, id)
		if err == nil && got.State != nil && got.State.Running {
			pid, full = got.State.Pid, got.ID
		}
		if err == nil && got.HostConfig != nil && farm.OwnKernel(got.HostConfig.Runtime) {
			local = ErrNotLocal
		}
		return err
	})
	if local != nil {
		return 0, "", local
	}
	if err == nil && (pid <= 0 || len(full) < 64) {
		err = farm.Conflictf("the container is not running")
	}
	return pid, full, err
}

// inside calls f in a network namespace. The thread that enters it ends with its goroutine.
func inside[T any](space *Netns, f func() (T, error)) (T, error) {
	type answer struct {
		got T
		err error
	}
	answers := make(chan answer, 1)
	go func() {
		runtime.LockOSThread() // never unlocked
		var a answer
		if a.err = space.enter(); a.err == nil {
			a.got, a.err = f()
		}
		answers <- a
	}()
	a := <-answers
	return a.got, a.err
}

// enter moves this thread to the namespace. It holds the descriptor: another file that got its number would be another sandbox's.
func (s *Netns) enter() error {
	raw, err := s.file.SyscallConn()
	if err != nil {
		return err
	}
	var entered error
	err = raw.Control(func(fd uintptr) { entered = os.NewSyscallError("setns", unix.Setns(int(fd), unix.CLONE_NEWNET)) }) //nolint:gosec // a descriptor is small
	return errors.Join(err, entered)
}

// connectTo connects to an abstract unix socket of this thread's network namespace.
func connectTo(socket string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	// A full backlog would block a connect forever.
	limit, none := unix.NsecToTimeval(localTimeout.Nanoseconds()), unix.Timeval{}
	err = os.NewSyscallError("setsockopt", unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit))
	if err == nil {
		err = os.NewSyscallError("connect", unix.Connect(fd, &unix.SockaddrUnix{Name: socket}))
	}
	if err == nil {
		err = os.NewSyscallError("setsockopt", unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &none))
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

const (
	streamBuffer = 64 << 10 // larger than one write of the engine (32 KiB)
	stderrMax    = 4 << 10  // of stderr is kept for the error
	headerBytes  = 8        // of a frame: stream, three zeros, length
)

// The streams of the engine's framing.
const (
	frameStdin  = 0
	frameStdout = 1
	frameStderr = 2
	frameSystem = 3
)

// stream is an exec's connection: raw to stdin, framed from stdout and stderr. Read removes the framing. One reader and one writer may
// use it at once; Close may be called from anywhere.
type stream struct {
	conn net.Conn
	r    *bufio.Reader
	left uint32 // of the frame of stdout that is being read

	mu     sync.Mutex
	stderr []byte
}

// Read reads stdout.
func (s *stream) Read(p []byte) (int, error) {
	for s.left == 0 {
		if err := s.nextFrame(); err != nil {
			return 0, err
		}
	}
	if uint64(len(p)) > uint64(s.left) {
		p = p[:s.left]
	}
	n, err := s.r.Read(p)
	s.left -= uint32(n) //nolint:gosec // n is at most left
	if err == io.EOF && s.left > 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// nextFrame reads a header, and the payload unless it is stdout.
func (s *stream) nextFrame() error {
	var header [headerBytes]byte
	if _, err := io.ReadFull(s.r, header[:]); err != nil {
		return s.ended(err)
	}
	size := binary.BigEndian.Uint32(header[4:])
	switch header[0] {
	case frameStdin, frameStdout:
		s.left = size
		return nil
	case frameStderr, frameSystem:
		return s.keep(size)
	default:
		return fmt.Errorf("read exec stream: frame of unknown stream %d", header[0])
	}
}

// keep keeps a frame of stderr, up to stderrMax in all.
func (s *stream) keep(size uint32) error {
	s.mu.Lock()
	room := min(int64(stderrMax-len(s.stderr)), int64(size))
	s.mu.Unlock()
	text := make([]byte, room)
	if _, err := io.ReadFull(s.r, text); err != nil {
		return s.ended(err)
	}
	s.mu.Lock()
	s.stderr = append(s.stderr, text...)
	s.mu.Unlock()
	if _, err := io.CopyN(io.Discard, s.r, int64(size)-room); err != nil {
		return s.ended(err)
	}
	return nil
}

// ended adds stderr to the error that ended the stream.
func (s *stream) ended(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.stderr) == 0 {
		return err
	}
	return fmt.Errorf("exec ended (stderr: %q): %w", s.stderr, err)
}

// Write writes to stdin.
func (s *stream) Write(p []byte) (int, error) { return s.conn.Write(p) }

// CloseWrite ends stdin; stdout stays open.
func (s *stream) CloseWrite() error {
	if half, ok := s.conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return s.conn.Close()
}

// Close ends the stream immediately, and unblocks a waiting Read or Write.
func (s *stream) Close() error { return s.conn.Close() }

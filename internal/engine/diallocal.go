package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// localTimeout bounds the connect: the listener is a process of this host, which answers at once or not at all.
const localTimeout = 2 * time.Second

// A container that was just started listens after a few milliseconds.
const (
	listenPatience = 500 * time.Millisecond
	listenPause    = 3 * time.Millisecond
)

// ErrNotLocal says that a container's sockets cannot be reached from this process: the engine is on another host, this process may not
// enter its network namespace, or the runtime has its own sockets (gVisor). Dial works there.
var ErrNotLocal = errors.New("the container's sockets cannot be reached from this process")

// DialLocal connects to an abstract unix socket ("@name") in a container's network namespace, without the engine: three processes copy
// a stream through an exec. It needs an engine on this host and the right to enter namespaces (root); otherwise it returns ErrNotLocal.
// It opens no file of the container: an abstract name exists in the network namespace alone, and belongs to the first listener, PID 1.
func (e *Engine) DialLocal(ctx context.Context, id, socket string) (net.Conn, error) {
	if os.Geteuid() != 0 || !strings.HasPrefix(socket, "@") {
		return nil, ErrNotLocal
	}
	pid, full, err := e.process(ctx, id)
	if err != nil {
		return nil, err
	}
	space, err := os.Open("/proc/" + strconv.Itoa(pid) + "/ns/net")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotLocal, err)
	}
	defer func() { _ = space.Close() }()
	// Check the process after its namespace was opened: the pid may be one of another host, or by now of another process. The cgroup names
	// the container.
	groups, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil || !strings.Contains(string(groups), full) {
		return nil, fmt.Errorf("%w: process %d is not the container's", ErrNotLocal, pid)
	}
	fd, err := connectIn(int(space.Fd()), socket) //nolint:gosec // a descriptor is small
	for end := time.Now().Add(listenPatience); errors.Is(err, unix.ECONNREFUSED) && time.Now().Before(end) && ctx.Err() == nil; {
		time.Sleep(listenPause)                      //nolint:forbidigo // nothing signals that a container listens
		fd, err = connectIn(int(space.Fd()), socket) //nolint:gosec // a descriptor is small
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
	return conn, nil
}

// DialSocket is DialLocal where that works, and else Dial of a command that connects to the socket.
func (e *Engine) DialSocket(ctx context.Context, id, socket string, command []string, user string) (io.ReadWriteCloser, error) {
	conn, err := e.DialLocal(ctx, id, socket)
	if err == nil || !errors.Is(err, ErrNotLocal) {
		return conn, err
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

// connectIn connects in another network namespace. The thread that enters it ends with its goroutine.
func connectIn(space int, socket string) (fd int, err error) {
	type answer struct {
		fd  int
		err error
	}
	answers := make(chan answer, 1)
	go func() {
		runtime.LockOSThread() // never unlocked
		fd, err := enterAndConnect(space, socket)
		answers <- answer{fd, err}
	}()
	a := <-answers
	return a.fd, a.err
}

func enterAndConnect(space int, socket string) (int, error) {
	if err := unix.Setns(space, unix.CLONE_NEWNET); err != nil {
		return -1, os.NewSyscallError("setns", err)
	}
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

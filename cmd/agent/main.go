// Command agent runs inside every sandbox: init is PID 1, dial connects its own stdin and stdout to it, files serves files to it as the
// sandbox's user, and wait keeps a container beside it for dial.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/files"
)

// version is set by the build.
var version = "dev"

var errUsage = errors.New("usage: agent init|dial|files|wait|version")

func main() {
	if err := run(context.Background(), os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, in *os.File, out *os.File) error {
	if len(args) == 0 {
		return errUsage
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	switch args[0] {
	case "init":
		o := initOptions{}
		flags.StringVar(&o.workspace, "workspace", "", "workspace directory")
		flags.StringVar(&o.run, "run", "", "the agent's own directory")
		flags.StringVar(&o.home, "home", "", "home directory of user code")
		flags.StringVar(&o.tmp, "tmp", "", "temporary directory of user code")
		flags.StringVar(&o.socket, "socket", agent.SocketPath, "socket to listen on")
		flags.IntVar(&o.uid, "dial-uid", agent.DialUID, "user id that may connect, besides root")
		flags.BoolVar(&o.egress, "egress", false, "forward connections of installers to the worker's package indexes")
		flags.BoolVar(&o.proxy, "proxy", false, "forward connections to the worker as a proxy, too")
		flags.StringVar(&o.authority, "authority", "", "certificate that programs trust, beside the image's (X.509, DER, in base64)")
		flags.Uint64Var(&o.pids, "pids", 0, "processes and threads of the sandbox's user, with those of the agent; 0: no limit but the engine's")
		flags.DurationVar(&o.endsIn, "ends-in", 0, "time until the sandbox's deadline; the agent ends the sandbox a few seconds after it")
		if err := flags.Parse(args[1:]); err != nil {
			return fmt.Errorf("parse flags: %w", err)
		}
		return runInit(ctx, o)
	case "dial":
		socket := flags.String("socket", agent.SocketPath, "socket to dial")
		if err := flags.Parse(args[1:]); err != nil {
			return fmt.Errorf("parse flags: %w", err)
		}
		return dial(ctx, *socket, in, out)
	case "files":
		return runFiles()
	case "wait":
		end := make(chan os.Signal, 1)
		signal.Notify(end, unix.SIGTERM)
		<-end
		return nil
	case "version":
		_, err := fmt.Fprintln(out, version)
		return err
	}
	return errUsage
}

// dialWait is how long dial waits for the agent to listen: it may be called just after the sandbox has been started.
const dialWait = 10 * time.Second

// dialPause is the time between two attempts.
const dialPause = 5 * time.Millisecond

// copyBytes is the size of one read: large, so that bulk data needs few system calls.
const copyBytes = 256 << 10

// dial copies between the socket and its input and output, each direction until EOF. It reads and writes blocking
// descriptors directly: all output of a sandbox passes here, and the runtime's poller would cost as much as the copy.
func dial(ctx context.Context, socket string, in, out *os.File) error {
	ctx, cancel := context.WithTimeout(ctx, dialWait)
	defer cancel()
	conn, err := connect(ctx, socket)
	if err != nil {
		return fmt.Errorf("dial agent: %w", err)
	}
	file, err := conn.File() // a duplicate, and blocking
	if err != nil {
		return fmt.Errorf("take the socket's descriptor: %w", err)
	}
	defer func() { _ = file.Close() }()
	_ = conn.Close()
	fd := int(file.Fd()) //nolint:gosec // a descriptor is small
	outFD := int(out.Fd())
	_, _ = unix.FcntlInt(uintptr(outFD), unix.F_SETPIPE_SZ, copyBytes) //nolint:gosec // fails if it is not a pipe
	go func() {
		_ = copyAll(fd, int(in.Fd()))
		_ = unix.Shutdown(fd, unix.SHUT_WR)
	}()
	if err := copyAll(outFD, fd); err != nil {
		return fmt.Errorf("copy from agent: %w", err)
	}
	return nil
}

// copyAll copies bytes from one descriptor to the other until EOF.
func copyAll(to, from int) error {
	buf := make([]byte, copyBytes)
	for {
		n, err := unix.Read(from, buf)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return os.NewSyscallError("read", err)
		case n == 0:
			return nil
		}
		for left := buf[:n]; len(left) > 0; {
			n, err := unix.Write(to, left)
			if err != nil && !errors.Is(err, unix.EINTR) {
				return os.NewSyscallError("write", err)
			}
			left = left[max(n, 0):]
		}
	}
}

func connect(ctx context.Context, socket string) (*net.UnixConn, error) {
	var dialer net.Dialer
	for {
		conn, err := dialer.DialContext(ctx, "unix", socket)
		if err == nil {
			unixConn, ok := conn.(*net.UnixConn)
			if !ok {
				return nil, errors.New("not a unix socket")
			}
			return unixConn, nil
		}
		if errors.Is(err, os.ErrPermission) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(dialPause):
		}
	}
}

// runFiles serves files to the agent. It uses the sandbox's memory, so it is small.
func runFiles() error {
	debug.SetGCPercent(gcPercent)
	debug.SetMemoryLimit(memoryGoal)
	runtime.GOMAXPROCS(min(runtime.GOMAXPROCS(0), maxProcs))
	file := os.NewFile(agent.FilesFD, "agent")
	conn, err := net.FileConn(file)
	if err != nil {
		return fmt.Errorf("take the agent's connection: %w", err)
	}
	_ = file.Close()
	return files.Serve(conn)
}

// Package agenttest starts agents in tests: the real server in temporary directories, with the real client, in one process.
package agenttest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/agent/server"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// Agent is a running agent and a client to it.
type Agent struct {
	*client.Client
	Workspace string
	Home      string
	Server    *server.Server
}

// Start starts an agent whose environment has this PATH. change, when not nil, may change its config.
func Start(tb testing.TB, path string, change func(*server.Config)) *Agent {
	tb.Helper()
	return start(tb, path, client.Options{}, change)
}

// StartPlain is Start with this machine's own programs.
func StartPlain(tb testing.TB) *Agent {
	tb.Helper()
	return Start(tb, "/usr/local/bin:/usr/bin:/bin", nil)
}

// StartWithKernel is Start with a Python that has a kernel and the packages of the sandbox image.
func StartWithKernel(tb testing.TB) *Agent {
	tb.Helper()
	return Start(tb, KernelPath(tb), nil)
}

// KernelPath returns a PATH whose first Python has a kernel and the packages of the sandbox image.
func KernelPath(tb testing.TB) string {
	tb.Helper()
	dir := os.Getenv("SANDFARM_TEST_KERNEL")
	if _, err := os.Stat(filepath.Join(dir, "bin", "python3")); dir == "" || err != nil {
		tb.Fatalf("SANDFARM_TEST_KERNEL=%q is not a Python environment with a kernel: run the tests with make, or `deploy/setup.sh kernel` and then `export SANDFARM_TEST_KERNEL=$(deploy/setup.sh kernel-dir)`", dir)
	}
	return filepath.Join(dir, "bin") + ":" + os.Getenv("PATH")
}

// UV returns the path of the installer that sandboxes use.
func UV(tb testing.TB) string {
	tb.Helper()
	path := os.Getenv("SANDFARM_TEST_UV")
	if _, err := os.Stat(path); err != nil {
		tb.Fatalf("SANDFARM_TEST_UV=%q is not the uv program: run the tests with make, or `deploy/setup.sh kernel` and then `export SANDFARM_TEST_UV=$(deploy/setup.sh uv-path)`", path)
	}
	return path
}

// StartIndexed is Start with package indexes, served by index.
func StartIndexed(tb testing.TB, path string, index http.Handler, change func(*server.Config)) *Agent {
	tb.Helper()
	return start(tb, path, client.Options{Egress: index}, func(c *server.Config) {
		c.Egress = "127.0.0.1:0"
		if change != nil {
			change(c)
		}
	})
}

// StartProxied is StartIndexed with a handler that is a proxy as well.
func StartProxied(tb testing.TB, path string, proxy http.Handler, change func(*server.Config)) *Agent {
	tb.Helper()
	return start(tb, path, client.Options{Egress: proxy, Proxy: true}, func(c *server.Config) {
		c.Egress, c.Proxy = "127.0.0.1:0", true
		if change != nil {
			change(c)
		}
	})
}

func start(tb testing.TB, path string, worker client.Options, change func(*server.Config)) *Agent {
	tb.Helper()
	dir, err := os.MkdirTemp("", "agent") // short, because socket paths are limited in length
	testbed.Must(tb, err)
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	cfg := server.Config{
		Version: "test", Workspace: filepath.Join(dir, "workspace"), RunDir: filepath.Join(dir, "run"),
		HomeDir: filepath.Join(dir, "home"), TmpDir: filepath.Join(dir, "tmp"), Env: []string{"PATH=" + path, "FARM=yes"},
	}
	for _, d := range []string{cfg.Workspace, cfg.HomeDir, cfg.TmpDir} {
		testbed.Must(tb, os.Mkdir(d, 0o755))
	}
	if change != nil {
		change(&cfg)
	}
	srv, err := server.New(cfg)
	testbed.Must(tb, err)
	tb.Cleanup(func() { _ = srv.Close() })
	return &Agent{Client: connect(tb, srv, worker), Workspace: cfg.Workspace, Home: cfg.HomeDir, Server: srv}
}

// Connect opens one more session to an agent.
func Connect(tb testing.TB, srv *server.Server) *client.Client {
	tb.Helper()
	return ConnectIndexed(tb, srv, nil)
}

// ConnectIndexed opens one more session, on which index serves the package indexes.
func ConnectIndexed(tb testing.TB, srv *server.Server, index http.Handler) *client.Client {
	tb.Helper()
	return connect(tb, srv, client.Options{Egress: index})
}

func connect(tb testing.TB, srv *server.Server, o client.Options) *client.Client {
	tb.Helper()
	ours, theirs := net.Pipe()
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.ServeConn(context.Background(), theirs)
	}()
	c, err := client.New(ours, o)
	testbed.Must(tb, err)
	tb.Cleanup(func() {
		_ = c.Close()
		<-served
	})
	return c
}

// Ran is everything that an execution reported.
type Ran struct {
	Stdout, Stderr string
	Displays       []agent.Display
	Commands       []agent.CommandMark // their ends
	Dropped        []agent.Dropped
	Outcome        agent.Outcome
	Frames         []agent.Frame // Types and sequence numbers only
}

// Run starts an execution, reads it to its end with acknowledgements and forgets it.
func Run(tb testing.TB, c *client.Client, spec agent.Spec) Ran {
	tb.Helper()
	id := NewID()
	ctx, cancel := context.WithTimeout(tb.Context(), 2*time.Minute)
	defer cancel()
	testbed.Must(tb, c.Start(ctx, id, spec))
	ran := Read(tb, c, id)
	testbed.Must(tb, c.Forget(ctx, id))
	return ran
}

// Read reads an execution to its end.
func Read(tb testing.TB, c *client.Client, id string) Ran {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), 2*time.Minute)
	defer cancel()
	frames, err := c.Frames(ctx, id, 1)
	testbed.Must(tb, err)
	defer func() { _ = frames.Close() }()
	var r collector
	for {
		f, err := frames.Next()
		if errors.Is(err, io.EOF) {
			return r.done()
		}
		testbed.Must(tb, err)
		testbed.Must(tb, r.add(f))
		if r.due() {
			testbed.Must(tb, c.Ack(ctx, id, f.Seq))
		}
	}
}

// Processes lists the processes whose environment contains a text, described by /proc.
func Processes(tb testing.TB, mark string) (found []string) {
	tb.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/environ")
	testbed.Must(tb, err)
	for _, path := range paths {
		if env, err := os.ReadFile(path); err == nil && bytes.Contains(env, []byte(mark)) {
			stat, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "stat"))
			if !bytes.Contains(stat, []byte(") Z ")) {
				found = append(found, string(stat))
			}
		}
	}
	return found
}

// ackEvery is how many bytes are read between two acknowledgements.
const ackEvery = 1 << 20

// collector assembles frames.
type collector struct {
	ran       Ran
	out, errs bytes.Buffer
	unacked   int
}

func (c *collector) add(f agent.Frame) error {
	c.unacked += len(f.Payload)
	c.ran.Frames = append(c.ran.Frames, agent.Frame{Seq: f.Seq, Type: f.Type})
	var err error
	switch f.Type {
	case agent.FrameStdout:
		c.out.Write(f.Payload)
	case agent.FrameStderr:
		c.errs.Write(f.Payload)
	case agent.FrameDisplay:
		var d agent.Display
		err = json.Unmarshal(f.Payload, &d)
		c.ran.Displays = append(c.ran.Displays, d)
	case agent.FrameDropped:
		var d agent.Dropped
		err = json.Unmarshal(f.Payload, &d)
		c.ran.Dropped = append(c.ran.Dropped, d)
	case agent.FrameCommandStart:
	case agent.FrameCommandEnd:
		var m agent.CommandMark
		err = json.Unmarshal(f.Payload, &m)
		c.ran.Commands = append(c.ran.Commands, m)
	case agent.FrameFinal:
		err = json.Unmarshal(f.Payload, &c.ran.Outcome)
	}
	if err != nil {
		return fmt.Errorf("decode frame %d: %w", f.Seq, err)
	}
	return nil
}

// due reports whether it is time to acknowledge.
func (c *collector) due() bool {
	if c.unacked < ackEvery {
		return false
	}
	c.unacked = 0
	return true
}

func (c *collector) done() Ran {
	c.ran.Stdout, c.ran.Stderr = c.out.String(), c.errs.String()
	return c.ran
}

// NewID returns a new id for an execution.
func NewID() string { return farm.NewID(farm.JobPrefix) }

// Code is an execution of Python code in the default context.
func Code(code string) agent.Spec { return agent.Spec{Kind: farm.KindExecute, Code: code} }

// Commands is an execution of commands.
func Commands(commands ...string) agent.Spec {
	return agent.Spec{Kind: farm.KindCommand, Commands: commands}
}

// StartWithFiles is StartPlain with the agent's own program, which serves files anywhere.
func StartWithFiles(tb testing.TB) *Agent {
	tb.Helper()
	return Start(tb, "/usr/local/bin:/usr/bin:/bin", func(c *server.Config) { c.Program = program(tb) })
}

var (
	building sync.Mutex
	built    *os.File // its name is removed, so it is gone when the last test of the package is
)

// program builds the agent, once for all tests of a package.
func program(tb testing.TB) string {
	tb.Helper()
	building.Lock()
	defer building.Unlock()
	path := func() string { return "/proc/" + strconv.Itoa(os.Getpid()) + "/fd/" + strconv.Itoa(int(built.Fd())) }
	if built != nil {
		return path()
	}
	dir, err := os.MkdirTemp("", "agentprogram")
	testbed.Must(tb, err)
	defer func() { _ = os.RemoveAll(dir) }()
	to := filepath.Join(dir, "agent")
	build := exec.CommandContext(tb.Context(), "go", "build", "-o", to, "github.com/sandfarm/sandfarm/cmd/agent") //nolint:gosec // a test's own
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		tb.Fatalf("build the agent: %v\n%s", err, out)
	}
	built, err = os.Open(to)
	testbed.Must(tb, err)
	return path()
}

// Serve listens on a port of this machine, which is that of the agent under test, until the test ends. It answers each connection with handle
// in a goroutine, and closes it then.
func Serve(tb testing.TB, handle func(io.ReadWriter)) (port int) {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // the listener ends with the test
	testbed.Must(tb, err)
	tb.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				handle(conn)
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}
